"""Records of ShareGPT and of Alpaca as messages, with the rules of LLaMA-Factory and of Stanford's Alpaca."""

from collections.abc import Mapping
import json
from typing import Any

Messages = list[Mapping[str, Any]]

# The columns by which a record is known.
COLUMNS = {'sharegpt': ('conversations',), 'alpaca': ('instruction', 'output')}

_ROLES = {
  'human': 'user',
  'user': 'user',
  'gpt': 'assistant',
  'assistant': 'assistant',
  'system': 'system',
  'observation': 'tool',
  'tool': 'tool',
}
_CALL = 'function_call'
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


def of_sharegpt(record: Mapping[str, Any]) -> Messages:
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
  return messages


def of_alpaca(record: Mapping[str, Any]) -> tuple[Messages, str]:
  """The prompt of a record of Alpaca as messages, and its answer.

  Args:
    record: `instruction` and `output`, and perhaps `input`, which becomes the next line of the instruction, `system`,
      and `history`, a list of pairs of earlier instructions and answers.

  Raises:
    ValueError: a column holds something else.
  """
  instruction, given, output = (_text(record, name) for name in ('instruction', 'input', 'output'))
  messages: Messages = [{'role': 'system', 'content': record['system']}] if record.get('system') else []
  for pair in record.get('history') or []:
    if not isinstance(pair, list) or len(pair) != 2:
      raise ValueError("column 'history' holds something else than pairs of instruction and answer")
    messages += [{'role': 'user', 'content': pair[0]}, {'role': 'assistant', 'content': pair[1]}]
  prompt = f'{instruction}\n{given}' if given else instruction
  return [*messages, {'role': 'user', 'content': prompt}], output


def of_alpaca_without_template(record: Mapping[str, Any]) -> tuple[str, str]:
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
  if role == _CALL:
    calls = _json(turn['value'], where)
    functions = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(function, Mapping) and 'name' in function for function in functions):
      raise ValueError(f'{where}: a function_call needs name and arguments')
    tool_calls = [{'type': 'function', 'function': function} for function in functions]
    return {'role': 'assistant', 'content': '', 'tool_calls': tool_calls}
  if role not in _ROLES:
    raise ValueError(f'{where}: unknown role {role!r}; known are {", ".join([*_ROLES, _CALL])}')
  return {'role': _ROLES[role], 'content': turn['value']}


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
