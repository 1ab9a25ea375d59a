"""Rewards of sampled completions, by name: functions in Python, and functions of tensors.

    @ext.register_reward('polite')
    def polite(completions, **columns):
      return [1.0 if 'please' in text else 0.0 for text in completions]

A function in Python has the signature of TRL's reward functions: it is called with lists by keyword, an item for each
completion, and returns as many numbers; None where it has nothing to say of a completion. The arguments of a reward, as
far as its parameters accept them:

  prompts          the prompts, texts or lists of messages, as the data have them
  completions      the texts; of prompts that are messages, lists of one message of the assistant
  completion_ids   the tokens, lists of integers, the one that ends a completion among them
  NAME             every other column of the records

A function of tensors is a part of the compiled step, on one replica. It is called with tensors by keyword, and returns
float32 [b]; NaN for None:

    @ext.register_reward('brief', in_graph=True)
    def brief(completion_mask, **features):
      return 1 - tf.reduce_mean(tf.cast(completion_mask, tf.float32), axis=1)

  completion_ids   int32 [b, max_completion_length], with padding behind the end
  completion_mask  int32 [b, max_completion_length], 1 for tokens, the one that ends a completion among them
  is_truncated     bool [b], whether a completion was cut off before it had ended
  answer_ids       int32 [b, max_completion_length], the tokens of the answer column and the end, with the same padding;
                   -1 throughout for an answer that is too long
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
import math
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import suggestions


@dataclasses.dataclass(frozen=True)
class Reward:
  """A registered function.

  Attributes:
    name: of the reward.
    function: see the module.
    in_graph: whether it is a function of tensors.
  """

  name: str
  function: Callable[..., Any]
  in_graph: bool

  @property
  def needed(self) -> list[str]:
    """The parameters that the function cannot be called without."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(self.function).parameters.values()
    return [each.name for each in parameters if each.kind in kinds and each.default is each.empty]

  def arguments(self, known: Mapping[str, object]) -> dict[str, object]:
    """Those of `known` that the function takes."""
    parameters = inspect.signature(self.function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
      return dict(known)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in known.items() if name in names}


_registered: dict[str, Reward] = {}


def register(name: str, in_graph: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Registers a reward.

  Args:
    name: its name in a configuration.
    in_graph: whether the function is one of tensors.

  Returns:
    A decorator for a function: see the module.

  Raises:
    UserError: the name is taken, by another function.
  """

  def decorate(function):
    known = _registered.get(name)
    if known is not None and _place(known.function) != _place(function):
      raise errors.UserError(
        f'the reward {name} is registered already, by {_place(known.function)}, and cannot be again by '
        f'{_place(function)}; take another name'
      )
    _registered[name] = Reward(name, function, in_graph)
    return function

  return decorate


def _place(function):
  return f'{function.__module__}.{function.__qualname__}'


def names() -> list[str]:
  """All names, sorted."""
  return sorted(_registered)


def find(wanted: Sequence[str], path: str) -> list[Reward]:
  """The rewards of these names.

  Args:
    wanted: the names requested.
    path: the dotted path of the field that they are from, for messages.

  Raises:
    UserError: there is none of a name.
  """
  with errors.Mistakes() as mistakes:
    for name in wanted:
      with mistakes.noted():
        if name not in _registered:
          hint = suggestions.did_you_mean(name, _registered, f'there are {", ".join(names())}')
          raise errors.UserError(
            f'{path}: no reward {name!r}; {hint} (ext.register_reward in a module of --registry adds more)'
          )
  return [_registered[name] for name in wanted]


def arguments(
  records: Sequence[Mapping[str, Any]],
  tokens: Sequence[Sequence[int]],
  texts: Sequence[str],
  prompt_texts: Sequence[str] | None = None,
  *,
  prompt_column: str,
  answers: Sequence[object] | None = None,
) -> dict[str, Sequence[object]]:
  """The arguments available to functions in Python: see the module.

  Args:
    records: of the prompts, one for each completion.
    tokens: of the completions.
    texts: of the completions, without special tokens.
    prompt_texts: the prompts, if the records have no column of them.
    prompt_column: the column of prompts.
    answers: the right answers, as the argument `answer`; None for none.
  """
  columns: dict[str, Any] = {name: [record.get(name) for record in records] for name in records[0]}
  prompts: Sequence[Any] = columns.pop(prompt_column, None) or list(prompt_texts or ())
  completions = [
    text if isinstance(prompt, str) else [{'role': 'assistant', 'content': text}]
    for prompt, text in zip(prompts, texts, strict=True)
  ]
  if answers is not None:
    columns['answer'] = list(answers)
  return {**columns, 'prompts': prompts, 'completions': completions, 'completion_ids': tokens}


def scores(reward: Reward, known: Mapping[str, Sequence[object]]) -> np.ndarray:
  """Calls a function in Python.

  Args:
    reward: the function.
    known: the arguments available: lists of one length, `completions` among them.

  Returns:
    float32 [b], NaN for None.

  Raises:
    UserError: it returned something else than as many numbers.
  """
  number = len(known['completions'])
  found = reward.function(**reward.arguments(known))
  try:
    values = [math.nan if value is None else float(value) for value in found]
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f'the reward {reward.name}: {_place(reward.function)} returned {str(found)[:80]}; expected a list of numbers'
    ) from error
  if len(values) != number:
    raise errors.UserError(
      f'the reward {reward.name}: {_place(reward.function)} returned {len(values)} numbers for {number} completions'
    )
  return np.array(values, np.float32)
