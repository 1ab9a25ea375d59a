"""Rewards of sampled completions, by name: the built-in ones, and functions that users register.

Example:

  >>> (reward,) = ext.rewards.find(['exact_match'], 'task.rewards')
  >>> reward.needed
  ['completions', 'answer']
  >>> ext.rewards.scores(reward, {'completions': ['4', 'five'], 'answer': ['4', '5']}).tolist()
  [1.0, 0.0]
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
import math
import re
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import registry


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
    """The entries of `known` that the function takes."""
    parameters = inspect.signature(self.function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
      return dict(known)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in known.items() if name in names}


REWARDS: registry.Registry[Reward] = registry.Registry(
  'reward', hint=' (ext.register_reward in a module of --registry adds more)'
)


def register(name: str, in_graph: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Registers a reward.

  Args:
    name: its name in a configuration.
    in_graph: whether the function is one of tensors.

  Returns:
    A decorator for a function: see the module.

  Raises:
    UserError: the name is taken, by another function.

  Example:

    >>> @ext.register_reward('short_answers')
    ... def short_answers(completions, **columns):
    ...   return [float(len(each) < 100) for each in completions]
  """
  return REWARDS.register(name, lambda function: Reward(name, function, in_graph))


def find(wanted: Sequence[str], path: str) -> list[Reward]:
  """The rewards of these names.

  Args:
    wanted: the names requested.
    path: the dotted path of the field that they are from, for messages.

  Raises:
    UserError: a name has no reward.
  """
  with errors.Mistakes() as mistakes:
    for name in wanted:
      mistakes.check(REWARDS.find, name, path)
  return [REWARDS[name] for name in wanted]


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
  where = f'the reward {reward.name}: {registry.place_of(reward.function)}'
  try:
    values = [math.nan if value is None else float(value) for value in found]
  except (TypeError, ValueError) as error:
    raise errors.UserError(f'{where} returned {str(found)[:80]}; expected a list of numbers') from error
  if len(values) != number:
    raise errors.UserError(f'{where} returned {len(values)} numbers for {number} completions')
  return np.array(values, np.float32)


_ANSWER = re.compile(r'<answer>(.*?)</answer>', re.DOTALL)
_THINK = re.compile(r'^<think>(?!.*<think>)(.*?)</think>.*$', re.DOTALL)
_REASONING = re.compile(r'^\s*<reasoning>.*?</reasoning>\s*<answer>.*?</answer>\s*$', re.DOTALL)


def text_of(completion: Any) -> str:
  """The text of a completion.

  Args:
    completion: a text, which is returned unchanged; or messages, of which the content of the last one is.
  """
  return completion if isinstance(completion, str) else str(completion[-1]['content'])


@register('exact_answer')
def exact_answer(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion's answer is the answer column's, but for white space at its ends, else 0.

  The answer of a completion is the text between the last <answer> and </answer>, or all of it without these.
  """
  del columns
  found = [(_ANSWER.findall(text) or [text])[-1].strip() for text in map(text_of, completions)]
  return [float(given == text_of(right).strip()) for given, right in zip(found, map(_as_text, answer))]


def _as_text(answer):
  return answer if isinstance(answer, (str, list)) else str(answer)


@register('exact_match')
def exact_match(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion is the answer column's text, but for white space at its ends, else 0."""
  del columns
  pairs = zip(map(text_of, completions), map(_as_text, answer))
  return [float(text.strip() == text_of(right).strip()) for text, right in pairs]


@register('contains')
def contains(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion contains the answer column's text, but for white space at its ends, else 0."""
  del columns
  pairs = zip(map(text_of, completions), map(_as_text, answer))
  return [float(text_of(right).strip() in text) for text, right in pairs]


@register('think_format')
def think_format(completions: Sequence[object], **columns: object) -> list[float]:
  """TRL's: 1 where a completion begins with one passage between <think> and </think>, else 0."""
  del columns
  return [float(_THINK.match(text_of(completion)) is not None) for completion in completions]


@register('answer_format')
def answer_format(completions: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion is <reasoning>...</reasoning> and <answer>...</answer>, and nothing else, else 0."""
  del columns
  return [float(_REASONING.match(text_of(completion)) is not None) for completion in completions]


@register('exact_tokens', in_graph=True)
def exact_tokens(completion_ids: tf.Tensor, answer_ids: tf.Tensor, **features: tf.Tensor) -> tf.Tensor:
  """1 where a completion has the tokens of the answer and then its end, else 0.

  Args:
    completion_ids: int32 [b, t], padded on the right.
    answer_ids: int32 [b, t], the same of the answers.
    **features: ignored.

  Returns:
    float32 [b].
  """
  del features
  return tf.cast(tf.reduce_all(completion_ids == answer_ids, axis=1), tf.float32)


@register('ended', in_graph=True)
def ended(is_truncated: tf.Tensor, **features: tf.Tensor) -> tf.Tensor:
  """1 where a completion has ended, 0 where it was cut off at `max_completion_length`.

  Args:
    is_truncated: bool [b].
    **features: ignored.

  Returns:
    float32 [b].
  """
  del features
  return tf.cast(~is_truncated, tf.float32)
