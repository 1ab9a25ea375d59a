"""Built-in rewards, and all registered ones: see reward_registry.py."""

from collections.abc import Sequence
import re
from typing import Any

import tensorflow as tf

from official_ext.language.fine_tuning import reward_registry

arguments = reward_registry.arguments
find = reward_registry.find
scores = reward_registry.scores

_ANSWER = re.compile(r'<answer>(.*?)</answer>', re.DOTALL)
_THINK = re.compile(r'^<think>(?!.*<think>)(.*?)</think>.*$', re.DOTALL)
_REASONING = re.compile(r'^\s*<reasoning>.*?</reasoning>\s*<answer>.*?</answer>\s*$', re.DOTALL)


def text_of(completion: Any) -> str:
  """The text of a completion: itself, or the content of its last message."""
  return completion if isinstance(completion, str) else str(completion[-1]['content'])


@reward_registry.register('exact_answer')
def exact_answer(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion's answer is the answer column's, but for white space at its ends, else 0.

  The answer of a completion is the text between the last <answer> and </answer>, or all of it without these.
  """
  del columns
  found = [(_ANSWER.findall(text) or [text])[-1].strip() for text in map(text_of, completions)]
  return [float(given == text_of(right).strip()) for given, right in zip(found, map(_as_text, answer))]


def _as_text(answer):
  return answer if isinstance(answer, (str, list)) else str(answer)


@reward_registry.register('exact_match')
def exact_match(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion is the answer column's text, but for white space at its ends, else 0."""
  del columns
  pairs = zip(map(text_of, completions), map(_as_text, answer))
  return [float(text.strip() == text_of(right).strip()) for text, right in pairs]


@reward_registry.register('contains')
def contains(completions: Sequence[object], answer: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion contains the answer column's text, but for white space at its ends, else 0."""
  del columns
  pairs = zip(map(text_of, completions), map(_as_text, answer))
  return [float(text_of(right).strip() in text) for text, right in pairs]


@reward_registry.register('think_format')
def think_format(completions: Sequence[object], **columns: object) -> list[float]:
  """TRL's: 1 where a completion begins with one passage between <think> and </think>, else 0."""
  del columns
  return [float(_THINK.match(text_of(completion)) is not None) for completion in completions]


@reward_registry.register('answer_format')
def answer_format(completions: Sequence[object], **columns: object) -> list[float]:
  """1 where a completion is <reasoning>...</reasoning> and <answer>...</answer>, and nothing else, else 0."""
  del columns
  return [float(_REASONING.match(text_of(completion)) is not None) for completion in completions]


@reward_registry.register('exact_tokens', in_graph=True)
def exact_tokens(completion_ids: tf.Tensor, answer_ids: tf.Tensor, **features: tf.Tensor) -> tf.Tensor:
  """1 where a completion has the tokens of the answer and then its end, else 0."""
  del features
  return tf.cast(tf.reduce_all(completion_ids == answer_ids, axis=1), tf.float32)


@reward_registry.register('ended', in_graph=True)
def ended(is_truncated: tf.Tensor, **features: tf.Tensor) -> tf.Tensor:
  """1 where a completion has ended, 0 where it was cut off."""
  del features
  return tf.cast(~is_truncated, tf.float32)
