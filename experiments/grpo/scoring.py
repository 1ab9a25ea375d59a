"""Rewards of a rollout: of tensors in the graph, or in Python on the host."""

from collections.abc import Mapping, Sequence
import inspect
import threading
from typing import Any

import numpy as np
import tensorflow as tf

import official_ext as ext


class AnsweredPrompts(ext.Source):
  """Prompts with the tokens of their answers: `answer_ids`, int32 [length], the end among them, padded.

  An answer that does not fit is -1 throughout: no completion is like it.
  """

  def __init__(self, prompts: Any, column: str, length: int):
    """Takes prompts that `check_columns` has looked at.

    Args:
      prompts: the source of the prompts.
      column: of the records, with the answers.
      length: tokens of the longest completion.
    """
    self._prompts = prompts
    self._column = column
    self._length = length

  def __len__(self) -> int:
    return len(self._prompts)

  def fetch(self, indices: Sequence[int]) -> list[Mapping[str, object]]:
    rows = self._prompts.fetch(indices)
    return [{**row, 'answer_ids': self._answer(int(row['record']))} for row in rows]

  def _answer(self, number):
    words = self._prompts.tokenizer
    record = self._prompts.record(number)
    if self._column not in record:
      raise ext.UserError(f'record {number} has no column {self._column!r}, which the rewards need')
    ids = words.encode(str(record[self._column]), add_special_tokens=False)
    if words.eos_token_id is not None:
      ids.append(words.eos_token_id)
    found = np.full(self._length, words.fill_token_id if len(ids) <= self._length else -1, np.int32)
    found[: len(ids)] = ids if len(ids) <= self._length else -1
    return found

  def describe(self, index: int) -> str:
    return self._prompts.describe(index)

  def summary(self) -> str:
    return self._prompts.summary()

  def identity(self) -> dict[str, object]:
    return {**self._prompts.identity(), 'answer_column': self._column, 'answer_length': self._length}


def check_columns(rewards: Sequence[Any], source: Any, params: ext.TextDataConfig) -> None:
  """Checks that the records have the columns that rewards need: functions in Python by their parameters, functions of
  tensors the answers, if they take any.

  Args:
    rewards: registered ones.
    source: of the prompts.
    params: its data configuration.

  Raises:
    UserError: the first record lacks a column.
  """
  there = list(source.record(0))
  known = {*there, 'prompts', 'completions', 'completion_ids'}
  if params.output_column in there:
    known.add('answer')
  path = f'task.{"train_data" if params.is_training else "validation_data"}'
  for reward in rewards:
    if reward.in_graph:
      lacking = 'answer' if takes_answers(reward) and params.output_column not in there else None
    else:
      lacking = next((name for name in reward.needed if name not in known), None)
    if lacking == 'answer':
      raise ext.UserError(
        f'{path}.output_column: the reward {reward.name} needs answers, and the records have no column '
        f'{params.output_column!r}; there are {", ".join(there)}'
      )
    if lacking is not None:
      raise ext.UserError(
        f'task.reward_funcs: the reward {reward.name} needs {lacking!r}, and the records have {", ".join(there)}'
      )


def takes_answers(reward: Any) -> bool:
  """Whether a reward of tensors has a parameter `answer_ids`."""
  return reward.in_graph and 'answer_ids' in inspect.signature(reward.function).parameters


def scores(rewards: Sequence[Any], rollout: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor], host: Any) -> Any:
  """The rewards of completions: float32 [n, rewards], NaN for none.

  Args:
    rewards: registered ones.
    rollout: see rollouts.py; completions are grouped by prompt.
    batch: the prompts.
    host: a `HostRewards`, for rewards in Python.
  """
  count = rollout['completion_ids'].shape[0] // batch['input_ids'].shape[0]
  features = {name: rollout[name] for name in ('completion_ids', 'completion_mask', 'is_truncated')}
  if 'answer_ids' in batch:
    features['answer_ids'] = tf.repeat(batch['answer_ids'], count, axis=0)
  by_name = {}
  for reward in rewards:
    if reward.in_graph:
      by_name[reward.name] = tf.cast(reward.function(**reward.arguments(features)), tf.float32)
  in_python = [reward for reward in rewards if not reward.in_graph]
  if in_python:
    records = tf.repeat(batch['record'], count)
    call = lambda *arrays: host(in_python, *arrays)
    inputs = [records, rollout['completion_ids'], rollout['completion_mask']]
    found = tf.ensure_shape(tf.numpy_function(call, inputs, tf.float32), [records.shape[0], len(in_python)])
    by_name.update({reward.name: found[:, number] for number, reward in enumerate(in_python)})
  return tf.stack([by_name[reward.name] for reward in rewards], axis=1)


class HostRewards:
  """Calls functions in Python, one at a time: they need not be safe for threads."""

  def __init__(self, source: Any, params: ext.TextDataConfig):
    """Takes the source of the prompts, and its data configuration."""
    self._source = source
    self._params = params
    self._lock = threading.Lock()

  def __call__(self, rewards: Sequence[Any], records: tf.Tensor, ids: tf.Tensor, mask: tf.Tensor) -> np.ndarray:
    """The rewards of completions.

    Args:
      rewards: functions in Python.
      records: the numbers of the prompts' records, integers [n].
      ids: tokens of the completions, int32 [n, t].
      mask: int32 [n, t].

    Returns:
      float32 [n, rewards].

    Raises:
      UserError: a function returned something else than numbers.
    """
    known = self._known([self._source.record(int(number)) for number in records], ids, mask)
    with self._lock:
      found = [ext.rewards.scores(reward, known) for reward in rewards]
    return np.stack(found, axis=1)

  def _known(self, records, ids, mask):
    """The arguments of functions, a list each."""
    tokens = [row[: int(length)].tolist() for row, length in zip(ids, mask.sum(axis=1))]
    texts = [self._source.tokenizer.decode(row, skip_special_tokens=True) for row in tokens]
    column = self._params.output_column
    answers = [record.get(column) for record in records] if column in records[0] else None
    return ext.rewards.arguments(records, tokens, texts, prompt_column=self._params.prompt_column, answers=answers)
