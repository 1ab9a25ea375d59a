"""Counts the records of a data set that are used, cut and dropped, with reasons."""

from collections.abc import Iterable
import dataclasses

from official_ext.base import json_values

MAX_NAMED = 5  # Bad records that are described.


@dataclasses.dataclass
class RecordReport:
  """Counts of the records.

  Attributes:
    records: how many there were.
    examples: how many are used.
    text_bytes: of all texts in UTF-8, before anything is cut: the base of bits per byte.
    tokens: of the texts that are used.
    learned_tokens: the tokens that a loss is on.
    cut_prompts: texts whose prompt was longer than `max_input_length`.
    cut_prompt_tokens: tokens that were lost by it.
    cut_contents: texts whose content was longer than `max_content_length`.
    cut_content_tokens: tokens that were lost by it.
    cut_texts: texts that were longer than a row, `seq_length`.
    cut_text_tokens: tokens that were lost by it.
    joined_ends: texts with a token that begins in the prompt and ends after it.
    bad_records: records that were left out, as they could not be used.
    without_loss: records that were left out, as nothing was left in them to learn.
    named: the errors of the first few bad ones.
    details: of a row format, JSON values for its `results`.
  """

  records: int = 0
  examples: int = 0
  text_bytes: int = 0
  tokens: int = 0
  learned_tokens: int = 0
  cut_prompts: int = 0
  cut_prompt_tokens: int = 0
  cut_contents: int = 0
  cut_content_tokens: int = 0
  cut_texts: int = 0
  cut_text_tokens: int = 0
  joined_ends: int = 0
  bad_records: int = 0
  without_loss: int = 0
  named: list[str] = dataclasses.field(default_factory=list)
  details: list[json_values.JsonObject] = dataclasses.field(default_factory=list)

  def counts(self) -> json_values.JsonObject:
    """All but the details."""
    return {name: value for name, value in vars(self).items() if name != 'details'}

  @classmethod
  def total(cls, reports: Iterable['RecordReport']) -> 'RecordReport':
    """The sum of several reports, with the errors of the first few bad records."""
    found = cls()
    for report in reports:
      for field in dataclasses.fields(cls):
        setattr(found, field.name, getattr(found, field.name) + getattr(report, field.name))
    found.named = found.named[:MAX_NAMED]
    return found

  @property
  def lost_tokens(self) -> int:
    """Tokens that were cut off."""
    return self.cut_prompt_tokens + self.cut_content_tokens + self.cut_text_tokens

  def summary(self, num_rows: int, division: json_values.JsonMapping | None = None) -> str:
    """The numbers of records that are used, dropped and held out, with reasons, in words.

    Args:
      num_rows: the rows that the records make.
      division: how records were divided: see `numbered_records.Records.division`.
    """
    reasons = ((self.bad_records, 'bad'), (self.without_loss, 'with nothing to learn'))
    dropped = ', '.join(f'{count} {why}' for count, why in reasons if count) or 'none'
    text = f'{self.examples} of {self.records} records in {num_rows} rows; dropped: {dropped}'
    if division:
      text += f'; held out for validation: {division["num_held_out"]} (task.validation_share)'
    return text

  def token_summary(self, num_places: int) -> str:
    """The numbers of tokens, and the share of the rows that they fill, in words.

    Args:
      num_places: the tokens that all rows have room for.
    """
    learned = f'{self.learned_tokens} of them to learn, ' if self.learned_tokens else ''
    return f'{self.tokens} tokens, {learned}in rows that are {100 * self.tokens / max(num_places, 1):.0f} % full'

  def warnings(self, path: str, prefix: str | None = None) -> list[str]:
    """A line for each way in which something was lost.

    Args:
      path: the dotted path of the data configuration.
      prefix: the prefix of a field's name; None: the path and a dot.
    """
    prefix = f'{path}.' if prefix is None else prefix
    total = self.tokens + self.lost_tokens
    cuts = (
      ('max_input_length', 'prompts', self.cut_prompts, self.cut_prompt_tokens),
      ('max_content_length', 'outputs', self.cut_contents, self.cut_content_tokens),
      ('seq_length', 'texts', self.cut_texts, self.cut_text_tokens),
    )
    lines = [
      f'{prefix}{field}: {count} {what} were cut, and {tokens} of {total} tokens lost'
      for field, what, count, tokens in cuts
      if count
    ]
    if self.joined_ends:
      lines.append(
        f'{path}: in {self.joined_ends} texts a token begins in the prompt and ends in the output, as it never does '
        'when a model answers; let prompts end where a token does, such as in front of a blank'
      )
    if self.without_loss:
      lines.append(f'{path}: {self.without_loss} of {self.records} records have nothing to learn, and are left out')
    if self.bad_records:
      lines.append(f'{path}: {self.bad_records} of {self.records} records are bad, and are left out: {self.named[0]}')
      lines += [f'{path}: left out: {text}' for text in self.named[1:]]
    return lines
