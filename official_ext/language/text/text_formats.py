"""From a record to the texts that a model sees, and which part of them it is to learn.

The formats and the names of their columns are as in Hugging Face's TRL: `text`; `messages`; `prompt` and `completion`;
`prompt`, `chosen` and `rejected`; `prompt`, `completion` and `label`; `prompt` alone. A prompt or an answer is a text,
or a list of messages, which the chat template lays out. Records of ShareGPT and Alpaca become messages by the rules of
LLaMA-Factory and of Stanford's Alpaca.

A turn of the assistant with `weight` 0, `loss` or `train` false, or `masked` true is not learned.

A record is refused if an answer to learn holds whitespace alone, no call of a tool and no reasoning: the model would
learn to end there. TRL learns it.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
from typing import Any

from absl import logging

from official_ext.base import errors
from official_ext.data import numbered_records
from official_ext.language.text import chat_templates
from official_ext.language.text import tokenizer as tokenizer_lib

RecordMessages = list[Mapping[str, Any]]

# The columns by which a record is known.
CONVERSATION_COLUMNS = {'sharegpt': ('conversations',), 'alpaca': ('instruction', 'output')}

_SHAREGPT_ROLES = {
  'human': 'user',
  'user': 'user',
  'gpt': 'assistant',
  'assistant': 'assistant',
  'system': 'system',
  'observation': 'tool',
  'tool': 'tool',
}
_CALL = 'function_call'
# Keys of a message that say whether it is learned, of OpenAI, mistral-finetune, axolotl, LLaMA-Factory and torchtune ->
# (the values of one that is, the values of one that is not); null and a missing key are for one that is.
_MARKS: Mapping[str, tuple[tuple[object, ...], tuple[object, ...]]] = {
  'weight': ((1,), (0,)),
  'loss': ((True,), (False,)),
  'train': ((True,), (False,)),
  'masked': ((False,), (True,)),
}
# https://github.com/tatsu-lab/stanford_alpaca, with an input and without one.
_WITH_INPUT = (
  'Below is an instruction that describes a task, paired with an input that provides further context. '
  'Write a response that appropriately completes the request.\n\n'
  '### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n'
)
_WITHOUT_INPUT = (
  'Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n'
  '### Instruction:\n{instruction}\n\n### Response:\n'
)


def messages_of_sharegpt(record: Mapping[str, Any]) -> RecordMessages:
  """The messages of a record of ShareGPT.

  Args:
    record: `conversations`, a list of dictionaries with `from` and `value`, and perhaps `system`. A turn `from`
      `function_call` holds a JSON object with `name` and `arguments`, or a list of them.

  Returns:
    Messages with `role` and `content`; calls of functions have `tool_calls`.

  Raises:
    ValueError: it holds something else.
  """
  turns = record['conversations']
  if isinstance(turns, str):  # As CSV keeps them.
    turns = _json(turns, "column 'conversations'")
  if not isinstance(turns, list) or not turns:
    raise ValueError("column 'conversations' is empty, or no list of turns")
  messages = [_message(turn, number) for number, turn in enumerate(turns)]
  system = record.get('system')
  if system and messages[0]['role'] != 'system':
    messages.insert(0, {'role': 'system', 'content': system})
  elif system and messages[0]['content'] != system:
    raise ValueError("column 'system' and the first turn are two system messages; keep one of them")
  return messages


def messages_of_alpaca(record: Mapping[str, Any]) -> tuple[RecordMessages, str]:
  """The prompt of a record of Alpaca as messages, and its answer.

  Args:
    record: `instruction` and `output`, and perhaps `input`, which becomes the next line of the instruction, `system`,
      and `history`, a list of pairs of earlier instructions and answers.

  Raises:
    ValueError: a column holds something else.
  """
  instruction, given, output = (_text(record, name) for name in ('instruction', 'input', 'output'))
  messages: RecordMessages = [{'role': 'system', 'content': record['system']}] if record.get('system') else []
  for pair in record.get('history') or []:
    if not isinstance(pair, list) or len(pair) != 2:
      raise ValueError("column 'history' holds something else than pairs of instruction and answer")
    messages += [{'role': 'user', 'content': pair[0]}, {'role': 'assistant', 'content': pair[1]}]
  prompt = f'{instruction}\n{given}' if given else instruction
  return [*messages, {'role': 'user', 'content': prompt}], output


def messages_of_alpaca_without_template(record: Mapping[str, Any]) -> tuple[str, str]:
  """The prompt of a record of Alpaca in the words of Stanford's Alpaca, and its answer, for a model without a template.

  Args:
    record: `instruction`, `output`, and perhaps `input`.

  Raises:
    ValueError: a column holds something else, or there are `system` or `history`, which this prompt cannot hold.
  """
  for name in ('system', 'history'):
    if record.get(name):
      raise ValueError(f'column {name!r} requires a chat template; set use_chat_template=true')
  instruction, given, output = (_text(record, name) for name in ('instruction', 'input', 'output'))
  prompt = (_WITH_INPUT if given else _WITHOUT_INPUT).format(instruction=instruction, input=given)
  return prompt, output


def _message(turn: object, number: int) -> Mapping[str, Any]:
  where = f"column 'conversations', turn {number}"
  if not isinstance(turn, Mapping) or not isinstance(turn.get('value'), str):
    raise ValueError(f'{where}: expected a dictionary with the texts from and value')
  role = turn.get('from')
  marks = {name: turn[name] for name in _MARKS if name in turn}
  if role == _CALL:
    calls = _json(turn['value'], where)
    functions = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(function, Mapping) and 'name' in function for function in functions):
      raise ValueError(f'{where}: a function_call needs name and arguments')
    tool_calls = [{'type': 'function', 'function': function} for function in functions]
    return {'role': 'assistant', 'content': '', 'tool_calls': tool_calls, **marks}
  if role not in _SHAREGPT_ROLES:
    raise ValueError(f'{where}: unknown role {role!r}; known are {", ".join([*_SHAREGPT_ROLES, _CALL])}')
  return {'role': _SHAREGPT_ROLES[role], 'content': turn['value'], **marks}


def _json(text: str, where: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{where}: is invalid JSON') from error


def _text(record: Mapping[str, Any], name: str) -> str:
  value = record.get(name)
  if value is None and name == 'input':
    return ''
  if not isinstance(value, str):
    raise ValueError(f'column {name!r} holds {str(value)[:50]}; expected a text')
  return value


FORMATS = ('auto', 'text', 'messages', 'prompt_output', 'sharegpt', 'alpaca', 'preference', 'unpaired', 'prompt')
ONE_EACH = ('preference', 'unpaired', 'prompt')  # Whose rows hold one example each.
LOSS_ON = ('completions', 'last_completion', 'all')
PACKINGS = ('none', 'best_fit', 'wrapped')

# The fields of a configuration that texts depend on, and the fields that rows of them do.
OF_FORMAT = (
  'example_format',
  'text_column',
  'messages_column',
  'tools_column',
  'prompt_column',
  'output_column',
  'chosen_column',
  'rejected_column',
  'use_chat_template',
  'system_prompt',
  'append_eos',
  'loss_on',
)
OF_LENGTH = ('seq_length', 'max_input_length', 'max_content_length', 'packing')
OF_ROWS = (*OF_FORMAT, *OF_LENGTH)


@dataclasses.dataclass
class TextFields:
  """How texts become rows of tokens: the fields of `ext.TextDataConfig`, which documents them."""

  split: str = ''
  seq_length: int = 1024
  example_format: str = 'auto'
  text_column: str = 'text'
  messages_column: str = 'messages'
  tools_column: str = 'tools'
  prompt_column: str = 'prompt'
  output_column: str = 'completion'
  chosen_column: str = 'chosen'
  rejected_column: str = 'rejected'
  label_column: str = 'label'
  use_chat_template: bool | None = False
  chat_template_path: str = ''
  system_prompt: str = ''
  append_eos: bool = True
  loss_on: str = 'completions'
  max_input_length: int = 0
  max_content_length: int = 0
  max_samples: int = -1
  packing: str = 'none'
  cache_dir: str = ''


# Columns that a record of a format has, as fields of the data configuration.
_COLUMNS = {
  'messages': ('messages_column',),
  'prompt_output': ('prompt_column', 'output_column'),
  'text': ('text_column',),
  'preference': ('chosen_column', 'rejected_column'),
  'unpaired': ('prompt_column', 'output_column', 'label_column'),
  'prompt': ('prompt_column',),
}
# Of turns in conversations, as chat templates know them.
_ROLES = ('system', 'user', 'assistant', 'tool')
_NUM_LOOKED_AT = 64
# Columns of records that other trainers read. Further ones are a user's own.
_OF_OTHERS = frozenset(
  """assistant_masks attention_mask audio audios chat_template_kwargs completion_mask example_weight history image
  images input_ids kto_tag labels loss_weight margin ref_chosen_logps ref_rejected_logps sample_weight system video
  videos weight""".split()
)
_MORE_COLUMNS = {'sharegpt': ('system',), 'alpaca': ('input', 'system', 'history')}
_FOUND_BY_THEMSELVES = ('messages', 'prompt_output', 'text', *CONVERSATION_COLUMNS)

Span = chat_templates.Span
Messages = list[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Text:
  """A text to be turned into tokens.

  Attributes:
    text: all of it.
    prompt_end: where the prompt ends, in characters; 0 of a text that has none.
    learned: the parts that the model learns: (start, end) in characters.
    add_special_tokens: whether the tokenizer adds the tokens at the beginning and end of texts. A chat template has
      done it.
    append_eos: whether the token that ends a sequence follows, and is learned.
    is_desirable: whether it is an answer to give; false of rejected ones, and by the label of unpaired ones.
  """

  text: str
  prompt_end: int
  learned: tuple[Span, ...]
  add_special_tokens: bool
  append_eos: bool
  is_desirable: bool = True


class TextFormat:
  """Turns records into texts.

  Attributes:
    name: one of `FORMATS`, but 'auto'.
    num_texts: how many texts a record makes: 2 of a preference (chosen, rejected), else 1.
    is_unpaired: whether each answer is an example by itself, with a label; of a pair both are.
    writes_date: whether a chat template that writes the present date has made a text.
    revision: above 0 if records have parts of which earlier versions made other texts, so that tokens in the cache
      differ.
  """

  def __init__(
    self,
    params: Any,
    tokenizer: tokenizer_lib.Tokenizer,
    records: numbered_records.Records,
    path: str,
  ):
    """Looks at the first record, to know the format.

    Args:
      params: a `TextDataConfig`.
      tokenizer: brings the chat template.
      records: at least one.
      path: the dotted path of `params`, for messages.

    Raises:
      UserError: the first record has other columns, or there is no chat template and one is needed.
    """
    self._params = params
    self._tokenizer = tokenizer
    self.writes_date = False
    first = records.read(0)
    self.name = params.example_format
    self.is_unpaired = self.name == 'unpaired'
    if self.is_unpaired and self._missing('unpaired', first) and not self._missing('preference', first):
      self.name = 'preference'  # Each pair makes two examples.
    if self.name == 'auto':
      self.name = next((name for name in _FOUND_BY_THEMSELVES if not self._missing(name, first)), '')
      if not self.name:
        columns = [list(self._columns(name)) for name in _FOUND_BY_THEMSELVES]
        raise errors.UserError(
          f'{path}.example_format: {records.place(0)} has the columns {", ".join(first)}; expected '
          f'{", or ".join(" and ".join(names) for names in columns)}; the fields messages_column, prompt_column, '
          'output_column and text_column name others'
        )
      self._check_unlabeled(first, records.place(0), path)
    for column in self._missing(self.name, first):
      field = self._columns(self.name)[column]
      hint = errors.did_you_mean(column, list(first), f'there are {", ".join(first)}')
      raise errors.UserError(f'{path}.{field}: {records.place(0)} has no column {column!r}; {hint}')
    self.num_texts = 2 if self.name == 'preference' else 1
    self._make: Callable[[Mapping[str, Any]], list[Text]] = getattr(self, f'_{self.name}')
    self._check_end(first, path)
    self._report_unread(first, records.place(0), path)
    numbers = range(min(_NUM_LOOKED_AT, len(records)))  # Of one row group, if they are in Parquet.
    self.revision = max(self._revision(records, number) for number in numbers)

  def _report_unread(self, record, place, path):
    """Reports columns that other trainers read. Rewards, which prompts alone are for, read any."""
    fields = ('prompt_column', 'output_column', 'chosen_column', 'rejected_column', 'label_column')
    used = {*self._columns(self.name), *_MORE_COLUMNS.get(self.name, ()), *(getattr(self._params, f) for f in fields)}
    is_plain = not self._params.use_chat_template and isinstance(record.get(self._params.prompt_column), str)
    known = {*_OF_OTHERS, *([self._params.tools_column] if is_plain or self.name == 'text' else [])}
    for name, value in record.items():
      if self.name != 'prompt' and name in known and name not in used and value not in (None, '', []):
        logging.warning('%s: %s: the column %r is read by other trainers, and not here; drop it', path, place, name)

  def _revision(self, records, number):
    """2: contents in parts, calls of tools, or turns that a template may leave out. 1: marks, or a repeated prompt."""
    try:
      record = records.read(number)
    except ValueError:  # A bad example, reported as such.
      return 0
    turns = [turn for value in record.values() for turn in _turns_in(value)]
    roles = [turn.get('role', turn.get('from')) for turn in turns]
    if any(isinstance(turn.get('content'), list) or turn.get('tool_calls') for turn in turns) or (
      {*roles[1:]} & {'system', 'tool', 'observation', _CALL}
    ):
      return 2
    prompt, chosen = (record.get(getattr(self._params, f'{name}_column')) for name in ('prompt', 'chosen'))
    is_repeated = isinstance(prompt, str) and isinstance(chosen, list)
    return int(is_repeated or any(turn.get(name) is not None for turn in turns for name in _MARKS))

  def texts(self, record: Mapping[str, object]) -> list[Text]:
    """The texts of a record.

    Raises:
      ValueError: the record has no such columns, or they hold something else. UserErrors of the chat template are some.
    """
    found = self._make(record)
    for text in found:
      check_unicode(text.text)
    return found

  def _check_unlabeled(self, record, place, path):
    """Refuses to learn answers with labels, some of which may be undesirable, as if all were to be given."""
    column = self._params.label_column
    if self.name == 'prompt_output' and record.get(column) in (True, False):  # 1 and 0 equal them.
      raise errors.UserError(
        f'{path}.example_format: {place} has the columns {", ".join(record)}: answers with labels, of which '
        f'undesirable ones would be learned too; train preference with loss_type=kto, drop {column!r} or the '
        'undesirable records, or set example_format=prompt_output to learn all'
      )

  def _check_end(self, record, path):
    """Refuses texts that shall end with a token which the tokenizer does not have."""
    if self._tokenizer.eos_token_id is not None:
      return
    try:
      needs_end = any(text.append_eos for text in self._make(record))
    except ValueError:  # It is a bad example, and reported as such.
      return
    if needs_end:
      raise errors.UserError(
        f'{path}.append_eos: the tokenizer has no eos_token to end texts with, so that the model would never stop; '
        'name one in tokenizer_config.json, or set append_eos to false'
      )

  def _columns(self, name):
    """The columns that a record of a format has, with the fields of the configuration that name them."""
    if name in CONVERSATION_COLUMNS:
      return dict.fromkeys(CONVERSATION_COLUMNS[name], 'example_format')
    return {getattr(self._params, field): field for field in _COLUMNS[name]}

  def _missing(self, name, record):
    return [column for column in self._columns(name) if column not in record]

  # A format each.

  def _text(self, record):
    text = self._string(record, 'text_column')
    return [Text(text, 0, ((0, len(text)),), True, self._params.append_eos)]

  def _messages(self, record):
    column = self._params.messages_column
    return self._learned_conversation(_as_messages(self._value(record, 'messages_column'), column), column, record)

  def _sharegpt(self, record):
    return self._learned_conversation(messages_of_sharegpt(record), 'conversations', record)

  def _alpaca(self, record):
    prompt: str | Messages
    if self._params.use_chat_template:
      prompt, output = messages_of_alpaca(record)
    else:
      prompt, output = messages_of_alpaca_without_template(record)
    return [self._answered(prompt, output, record, 'output')]

  def _learned_conversation(self, messages, column, record):
    turns = _learned_turns(messages)
    _check_filled(messages, turns[-1:] if self._params.loss_on == 'last_completion' else turns, column)
    return [self._conversation(self._with_system(messages), None, self._tools(record))]

  def _prompt_output(self, record):
    prompt, output = self._value(record, 'prompt_column'), self._value(record, 'output_column')
    return [self._answered(prompt, output, record, self._params.output_column)]

  def _preference(self, record):
    chosen, rejected = self._value(record, 'chosen_column'), self._value(record, 'rejected_column')
    prompt = record.get(self._params.prompt_column)
    names = self._params.chosen_column, self._params.rejected_column
    if prompt is None or _is_repeated(prompt, chosen, rejected, self._params.prompt_column):
      # Both answers are conversations that begin alike.
      chosen, rejected = _as_messages(chosen, names[0]), _as_messages(rejected, names[1])
      same = _num_same(chosen, rejected)
      prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
      if not prompt:
        raise ValueError(f'there is no {self._params.prompt_column!r}, and the answers do not begin with the same turn')
    return [
      self._answered(prompt, chosen, record, self._params.chosen_column),
      dataclasses.replace(self._answered(prompt, rejected, record, self._params.rejected_column), is_desirable=False),
    ]

  def _unpaired(self, record):
    prompt, output = self._value(record, 'prompt_column'), self._value(record, 'output_column')
    column = self._params.label_column
    label = record.get(column)
    if label not in (True, False):  # 1 and 0 equal them.
      raise ValueError(f'column {column!r} holds {str(label)[:50]!r}; expected true or false')
    text = self._answered(prompt, output, record, self._params.output_column)
    return [dataclasses.replace(text, is_desirable=bool(label))]

  def _prompt(self, record):
    prompt = self._value(record, 'prompt_column')
    if isinstance(prompt, str) and not self._params.use_chat_template:
      return [Text(prompt, len(prompt), (), True, False)]
    messages = self._with_system(_as_turns(prompt, 'user', self._params.prompt_column))
    tools = self._tools(record)
    text = self._render(messages, True, tools)
    self._check_written(text, messages, True, tools)
    return [Text(text, len(text), (), False, False)]

  # Parts of them.

  def _answered(self, prompt, output, record, output_column):
    """A prompt and an answer, each a text or messages."""
    if isinstance(prompt, str) and isinstance(output, str) and not self._params.use_chat_template:
      if not output.strip():
        raise ValueError(f'column {output_column!r} is empty')
      text = prompt + output
      learned = (0 if self._params.loss_on == 'all' else len(prompt), len(text))
      return Text(text, len(prompt), (learned,), True, self._params.append_eos)
    asked = _as_turns(prompt, 'user', self._params.prompt_column)
    answer = _as_turns(output, 'assistant', output_column)
    if answer[: len(asked)] == asked:
      raise ValueError(f'column {output_column!r} begins with the prompt, which would be there twice; keep it in one')
    if not any(map(_has_content, answer)):
      raise ValueError(f'column {output_column!r} is empty')
    _check_filled(answer, _learned_turns(answer), output_column)
    turns = self._with_system(asked)
    return self._conversation([*turns, *answer], len(turns), self._tools(record))

  def _conversation(self, messages, num_prompt, tools):
    """The text of messages, and where in it the assistant's turns are: from `num_prompt` on, if it is given."""
    template = self._template(tools)
    text, marked = template.render_with_spans(messages, False, tools, **self._tokenizer.special_tokens)
    self._check_written(text, messages, False, tools)
    turns = [number for number, message in enumerate(messages) if message.get('role') == 'assistant']
    turns = [number for number in turns if number >= (num_prompt or 0)]
    left_out = [number for number in turns if not _is_learned(messages[number], number)]
    _check_others(messages)
    is_all = self._params.loss_on == 'all'
    try:
      if num_prompt is not None and not left_out:
        spans = [(self._begin(text, messages, num_prompt, tools), len(text))]
      elif num_prompt is None and template.marks_generation:
        spans = [span for span in marked if span[1] > span[0]]
        if left_out and len(spans) != len(turns):
          raise ValueError(
            f'message {left_out[0]} is not to be learned, and the template marks {len(spans)} parts by '
            f'{{% generation %}} for {len(turns)} turns of the assistant'
          )
        spans = [span for number, span in zip(turns, spans) if number not in left_out] if left_out else spans
      else:
        numbers = [number for number in turns if number not in left_out]
        if self._params.loss_on == 'last_completion':
          numbers = numbers[-1:]
        spans = [self._turn(text, messages, number, tools) for number in numbers]
    except (_UnlocatedError, errors.UserError):  # The template may refuse a part of the conversation.
      if not is_all or left_out:
        raise
      return Text(text, 0, ((0, len(text)),), False, False)  # All of it is learned, wherever answers are.
    if not spans:
      raise ValueError(_without_answer(messages))
    if self._params.loss_on == 'last_completion':
      spans = spans[-1:]
    learned = tuple(spans)
    if is_all:
      learned = _without(text, [self._turn(text, messages, number, tools) for number in left_out])
    return Text(text, spans[0][0], learned, False, False)

  def _check_written(self, text, messages, add_generation_prompt, tools):
    """Refuses a conversation of which the template leaves something out that the assistant answers to."""

    def is_left_out(changed, tools):
      try:
        return self._render(changed, add_generation_prompt, tools) == text
      except errors.UserError:
        return False

    for number, message in enumerate(messages):
      content = message.get('content')
      if message.get('role') == 'assistant' or all(part in text for part in _texts_of(content)):
        continue
      other = f'{content}{_MARKERS[0]}' if isinstance(content, str) else [{'type': 'text', 'text': _MARKERS[0]}]
      if is_left_out([*messages[:number], {**message, 'content': other}, *messages[number + 1 :]], tools):
        raise ValueError(
          f'the chat template leaves message {number} out, a turn of the {message.get("role")}: {str(content)[:40]!r}; '
          'name another template by chat_template_path, or change the data'
        )
    names = [tool.get('function', tool).get('name') for tool in tools or () if isinstance(tool, Mapping)]
    if names and not any(str(name) in text for name in names) and is_left_out(messages, None):
      raise ValueError(
        f'the chat template leaves the tools out, such as {names[0]!r}; name another template by chat_template_path, '
        "or set tools_column='' to train without tools"
      )

  def _turn(self, text, messages, number, tools):
    """The assistant's turn of this number: from the generation prompt to the end of the turn."""
    start = self._begin(text, messages, number, tools)
    if number == len(messages) - 1:
      return start, len(text)
    through = self._render(messages[: number + 1], False, tools)
    if not text.startswith(through):
      raise self._unlocated(number)
    return start, len(through)

  def _begin(self, text, messages, number, tools):
    """The place in the text where the answers from this message on begin: after the generation prompt."""
    before = self._render(messages[:number], True, tools)
    if text.startswith(before):
      return len(before)
    # The answer does not begin with the generation prompt, which may end with <think>. It begins where the texts of two
    # other contents differ.
    if isinstance(messages[number].get('content'), str):
      message = {name: value for name, value in messages[number].items() if name not in chat_templates.REASONING}
      first, second = (
        self._render([*messages[:number], {**message, 'content': mark}], False, tools) for mark in _MARKERS
      )
      head = first[: _num_same(first, second)]
      if text.startswith(head) and first[len(head) :].startswith(_MARKERS[0]):
        return len(head)
    raise self._unlocated(number)

  def _unlocated(self, number):
    hint = 'take loss_on=last_completion or loss_on=all' if number else 'take loss_on=all'
    return _UnlocatedError(
      f'the chat template writes the turns before message {number} otherwise when more follow, so that the text of '
      f'the assistant cannot be located; mark it by {{% generation %}} in the template, or {hint}'
    )

  def _template(self, tools):
    found = self._tokenizer.chat_template(tools is not None)
    self.writes_date |= found.writes_date
    return found

  def _render(self, messages, add_generation_prompt, tools):
    template = self._template(tools)
    return template.render(messages, add_generation_prompt, tools, **self._tokenizer.special_tokens)

  def _with_system(self, messages):
    prompt = self._params.system_prompt
    if not prompt or messages[0].get('role') == 'system':
      return messages
    return [{'role': 'system', 'content': prompt}, *messages]

  def _tools(self, record):
    tools = record.get(self._params.tools_column) if self._params.tools_column else None
    if isinstance(tools, str):  # As files with columns of one type each keep them.
      tools = json.loads(tools) if tools.strip() else None
    if not tools:
      return None
    if not isinstance(tools, list):
      raise ValueError(f'column {self._params.tools_column!r} holds no list of tools')
    return tools

  def _value(self, record, field):
    column = getattr(self._params, field)
    if record.get(column) is None:
      raise ValueError(f'column {column!r} is missing' if column not in record else f'column {column!r} is null')
    value = record[column]
    if not isinstance(value, (str, list)):
      raise ValueError(f'column {column!r} holds {str(value)[:50]}; expected a text or a list of messages')
    return value

  def _string(self, record, field):
    value = self._value(record, field)
    if not isinstance(value, str):
      raise ValueError(f'column {getattr(self._params, field)!r} holds a list; expected a text')
    return value


class _UnlocatedError(ValueError):
  """The text of an answer cannot be located in the text of its conversation."""


_MARKERS = ('\ue000', '\ue001')  # Contents of private use, which no template has.


def _texts_of(content: object) -> list[str]:
  """The texts of a content, without blanks around them."""
  parts = content if isinstance(content, list) else [content]
  texts = [part.get('text') if isinstance(part, Mapping) else part for part in parts]
  return [text.strip() for text in texts if isinstance(text, str)]


def _turns_in(value: object) -> Messages:
  """The turns in a column, which is a list of messages or its JSON text."""
  if isinstance(value, str) and value.startswith('['):
    try:
      value = json.loads(value)
    except (ValueError, RecursionError):
      return []
  return [turn for turn in value if isinstance(turn, Mapping)] if isinstance(value, list) else []


def _check_others(messages: Messages) -> None:
  """Refuses a turn of another role that is marked as one to learn, as axolotl learns it."""
  for number, message in enumerate(messages):
    if message.get('train') is True and message.get('role') != 'assistant':
      raise ValueError(f'message {number}: train: True: only turns of the assistant are learned; take the mark away')


def _learned_turns(messages: Messages) -> list[int]:
  """The numbers of the turns of the assistant that are learned."""
  turns = [number for number, message in enumerate(messages) if message.get('role') == 'assistant']
  return [number for number in turns if _is_learned(messages[number], number)]


def _without(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
  """The parts of a text between spans, which are in order."""
  places = [0, *(place for span in spans for place in span), len(text)]
  return tuple((start, end) for start, end in zip(places[::2], places[1::2]) if end > start)


def _is_repeated(prompt: object, chosen: object, rejected: object, column: str) -> bool:
  """Whether a prompt is a text that both answers, whole conversations, begin with as a turn of the user.

  Raises:
    ValueError: they begin with other turns, so that it is not clear what the prompt is.
  """
  if not isinstance(prompt, str) or not isinstance(chosen, list) or not isinstance(rejected, list):
    return False
  begin = chosen[: _num_same(chosen, rejected)]
  if not begin:
    return False
  contents = [turn.get('content') for turn in begin if isinstance(turn, Mapping)]
  if prompt.strip() not in [content.strip() for content in contents if isinstance(content, str)]:
    raise ValueError(f'column {column!r} is a text, and the answers begin with other turns; drop the column')
  return True


def _as_turns(value: object, role: str, column: str) -> Messages:
  return [{'role': role, 'content': value}] if isinstance(value, str) else _as_messages(value, column)


def _as_messages(value: object, column: str) -> Messages:
  if isinstance(value, str):
    try:
      value = json.loads(value)
    except (ValueError, RecursionError):
      value = None
  if not isinstance(value, list) or not all(isinstance(message, Mapping) and 'role' in message for message in value):
    items = value if isinstance(value, list) else []
    keys = sorted({str(key) for item in items if isinstance(item, Mapping) for key in item})
    found = f'; these have {", ".join(keys[:5])}' if keys else ''
    raise ValueError(
      f'column {column!r} holds no list of messages, which are dictionaries with role and content{found}'
    )
  if not value:
    raise ValueError(f'column {column!r} is empty')
  return list(value)


def _is_learned(message: Mapping[str, object], number: int) -> bool:
  """Whether no key of a message of the assistant marks it as one that is not to be learned.

  Raises:
    ValueError: a mark has another value than those known, such as a weight of 0.5.
  """
  found = True
  for name, (yes, no) in _MARKS.items():
    value = message.get(name)
    if value is not None and value not in (*yes, *no):
      raise ValueError(
        f'message {number}: {name}: {value!r}: expected {yes[0]!r}, or {no[0]!r} for a turn to leave out'
      )
    found = found and (value is None or value in yes)
  return found


def _check_filled(messages: Messages, numbers: Sequence[int], column: str) -> None:
  """Raises a ValueError if one of these turns of the assistant is empty."""
  for number in numbers:
    if not _has_content(messages[number]):
      raise ValueError(f'column {column!r}: message {number}, a turn of the assistant, is empty')


def _has_content(message: Mapping[str, object]) -> bool:
  """Whether a message holds more than whitespace: text, another part such as an image, calls of tools, or reasoning."""
  content = message.get('content')
  parts = content if isinstance(content, list) else [content]
  texts = [part.get('text') if isinstance(part, Mapping) and part.get('type') == 'text' else part for part in parts]
  texts += [message.get(name) for name in chat_templates.REASONING]
  return bool(message.get('tool_calls')) or any(text.strip() if isinstance(text, str) else text for text in texts)


def _without_answer(messages: Messages) -> str:
  """The error in messages without a turn to learn from: often their roles have other names."""
  roles = list(dict.fromkeys(str(message.get('role')) for message in messages))
  unknown = [role for role in roles if role not in _ROLES]
  text = 'there is no turn of the assistant to learn from'
  if 'assistant' in roles:
    return f'{text}: {", ".join(_MARKS)} leave all of them out'
  if not unknown:
    return text
  return f'{text}; the roles are {", ".join(roles)}, and those known are {", ".join(_ROLES)}: rename them in the data'


def _num_same(first: Sequence[object], second: Sequence[object]) -> int:
  number = 0
  while number < min(len(first), len(second)) and first[number] == second[number]:
    number += 1
  return number


def check_unicode(text: str) -> None:
  """Raises a ValueError if a text has halves of surrogate pairs, as bytes have become that are not UTF-8."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f'half of a surrogate pair at character {error.start}, {text[error.start]!a}, which is not valid Unicode'
    ) from error
