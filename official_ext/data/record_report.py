"""Accounts for all that an input holds: records that are used, cut and dropped, with reasons, and fields of formats.

`Balance` is the same account for every input: found = used + left out, and what is there and not read.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping
import dataclasses

from official_ext.base import json_values

MAX_NAMED = 5  # Bad records, reasons and names that are described in a line.
UNACCOUNTED = 'unaccounted'


@dataclasses.dataclass
class Balance:
  """The account of one kind of thing in an input: `found` is `used` and the sum of `left_out`.

  Attributes:
    source: the path of the input, or the name of the source.
    unit: 'images', 'objects', 'label files', 'records' or 'examples'.
    found: how many there are, counted where they are listed.
    used: how many are used, counted where they are written.
    left_out: how many are not used, by reason.
    ignored: how often each thing is there that is not read, by name: files, folders, columns and fields.

  Example:

    >>> from official_ext.data import record_report
    >>> balance = record_report.Balance('photos', 'images', found=5, used=4)
    >>> balance.left_out['No such file'] += 1
    >>> balance.ignored['.txt files'] += 2
    >>> balance.line()
    'photos: 5 images found, 4 used; left out: 1 No such file; not read: 2 .txt files'
  """

  source: str
  unit: str
  found: int = 0
  used: int = 0
  left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  ignored: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

  def values(self) -> json_values.JsonObject:
    """JSON values. A difference between `found` and its parts is the reason `unaccounted`."""
    left_out = dict(+self.left_out)
    rest = self.found - self.used - sum(left_out.values())
    if rest:
      left_out[UNACCOUNTED] = rest
    return {**vars(self), 'left_out': left_out, 'ignored': dict(+self.ignored)}

  def line(self) -> str:
    """The account in words."""
    return balance_line(self.values())


def balance_line(values: json_values.JsonMapping) -> str:
  """A balance in words; `values` are of `Balance.values`."""
  text = f'{values["source"]}: {values["found"]} {values["unit"]} found, {values["used"]} used'
  for name, words in (('left_out', 'left out'), ('ignored', 'not read')):
    if values[name]:
      text += f'; {words}: {_listed(values[name])}'
  return text


def field_lines(balances: Iterable[json_values.JsonMapping]) -> Iterator[str]:
  """A line for each unknown field or column, and for a balance whose parts have another sum."""
  for each in balances:
    for name, count in each['ignored'].items():
      if ' field ' in name or ' column ' in name:
        yield f'{each["source"]}: {name}: is not read: {count} {"value" if count == 1 else "values"}'
    if UNACCOUNTED in each['left_out']:
      yield f'{balance_line(each)}: report it, with the input'


def unknown_balance(source: str) -> json_values.JsonObject:
  """The account of an input that cannot be counted, such as a custom tf.data pipeline."""
  return {'source': source, 'unit': 'examples', 'found': 'unknown', 'used': 'unknown', 'left_out': {}, 'ignored': {}}


def _listed(counts: Mapping[str, int]) -> str:
  """The most frequent ones, with their numbers, and how many others."""
  ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
  named = [f'{count} {name}' for name, count in ordered[:MAX_NAMED]]
  if ordered[MAX_NAMED:]:
    named.append(f'{sum(count for _, count in ordered[MAX_NAMED:])} others')
  return ', '.join(named)


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

  def balance(self, source: str) -> Balance:
    """The account of the records; texts that are cut count as used."""
    left_out = collections.Counter({'bad': self.bad_records, 'with nothing to learn': self.without_loss})
    return Balance(source, 'records', self.records, self.examples, left_out)

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
