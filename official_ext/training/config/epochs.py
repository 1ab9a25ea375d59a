"""Lengths and intervals in epochs of the training data, and the steps at which epochs end.

An epoch of 33 examples in batches of 32 has 33/32 steps. Each end is rounded up by itself: epochs end at the steps 2,
3, 4, 5, 6 and 7, so that six epochs have six ends. The multiples of one rounded interval, 2, 4, 6 and 7, are four.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from fractions import Fraction
import math
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.data import config_fields
from official_ext.training.config import definitions

# Field in epochs -> field in steps.
INTERVALS = {
  'validation_interval_epochs': 'validation_interval',
  'checkpoint_interval_epochs': 'checkpoint_interval',
  'summary_interval_epochs': 'summary_interval',
}
FIELDS = {'train_epochs': 'train_steps', **INTERVALS}
_MOST = 10**6  # The greatest denominator of a fraction of an epoch: 0.1 is 1/10, and 0.3333333333333333 is 1/3.


@dataclasses.dataclass(frozen=True)
class Ends:
  """The steps at which equal parts of a training end: its epochs, halves of them, or every N steps.

  Part k ends at the first step by which k parts are done.

  Attributes:
    pieces: (first step, parts done there, steps of a part) of each piece of the training, the first one from step 0. A
      run that resumes with another batch size begins a piece.

  Example:

    >>> from fractions import Fraction
    >>> from official_ext.training.config import epochs
    >>> ends = epochs.Ends(((0, Fraction(0), Fraction(33, 32)),))
    >>> [step for step in range(9) if ends.is_end(step)], ends.end_of(6), ends.count(5)
    ([2, 3, 4, 5, 6, 7, 8], 7, 4)
  """

  pieces: tuple[tuple[int, Fraction, Fraction], ...]

  def parts(self, step: int) -> Fraction:
    """The number of parts done after `step` steps."""
    first, done, length = next(piece for piece in reversed(self.pieces) if piece[0] <= step or piece == self.pieces[0])
    return done + (step - first) / length

  def count(self, step: int) -> int:
    """The number of ends up to a step, which is the number of the part that follows, from 0."""
    return math.floor(self.parts(step))

  def is_end(self, step: int) -> bool:
    """Whether a part ends at a step."""
    return step > 0 and self.count(step) > self.count(step - 1)

  def is_end_in_graph(self, step: Any) -> Any:
    """`is_end` of a step of the last piece: an int64 scalar tensor or variable; a bool tensor."""
    first, done, length = self.pieces[-1]
    (over, under), (numerator, denominator) = length.as_integer_ratio(), done.as_integer_ratio()
    # count = floor(numerator / denominator + (step - first) under / over), in whole numbers.
    count = lambda at: (numerator * over + (at - first) * (under * denominator)) // (denominator * over)
    return count(step) > count(step - 1)

  def end_of(self, parts: Fraction | int) -> int:
    """The first step by which so many parts are done; 0 at the least."""
    following = [*(piece[0] for piece in self.pieces[1:]), None]
    for (first, done, length), end in zip(self.pieces, following):
      step = first + math.ceil((parts - done) * length)
      if end is None or step <= end:
        return max(0, step)
    raise AssertionError

  def next_after(self, step: int) -> int:
    """The first end after a step."""
    return self.end_of(self.count(step) + 1)

  def shares(self, share: Fraction) -> 'Ends':
    """The ends of parts that are a share of these, but at least one step long."""
    pieces: list[tuple[int, Fraction, Fraction]] = []
    for first, _, length in self.pieces:
      done = pieces[-1][1] + (first - pieces[-1][0]) / pieces[-1][2] if pieces else Fraction(0)
      pieces.append((first, done, max(Fraction(1), share * length)))
    return Ends(tuple(pieces))

  def steps(self) -> str:
    """The steps of a part in the last piece, for people: '4', '1 or 2'."""
    length = self.pieces[-1][2]
    return str(length) if length.denominator == 1 else f'{math.floor(length)} or {math.ceil(length)}'


def every(num_steps: int) -> Ends | None:
  """The multiples of a number of steps; None if it is not positive."""
  return Ends(((0, Fraction(0), Fraction(num_steps)),)) if num_steps > 0 else None


@dataclasses.dataclass(frozen=True)
class Lengths:
  """The lengths of a training in epochs.

  Attributes:
    epochs: the ends of epochs of the training data; None if the number of examples or the batch size is not known.
    given: the values of the fields in epochs that are set, by their names.
    rounds_once: whether intervals in epochs are rounded once and multiplied: in runs that versions without `to_json`
      have begun.
  """

  epochs: Ends | None = None
  given: Mapping[str, Fraction] = dataclasses.field(default_factory=dict)
  rounds_once: bool = False

  def ends(self, name: str, num_steps: int) -> Ends | None:
    """The ends of an interval.

    Args:
      name: the field in steps, such as `validation_interval`.
      num_steps: its value, which counts if the interval is not given in epochs.

    Returns:
      None if the interval is not positive.
    """
    share = next((self.given[key] for key, value in INTERVALS.items() if value == name and key in self.given), None)
    if share is None or self.epochs is None or self.rounds_once:
      return every(num_steps)
    return self.epochs.shares(share)

  def whole_epochs(self) -> Ends | None:
    """The ends of whole epochs, at least one step long; None if they are not known."""
    if self.epochs is None:
      return None
    return every(math.ceil(self.epochs.pieces[-1][2])) if self.rounds_once else self.epochs.shares(Fraction(1))

  def to_json(self) -> json_values.Json:
    """The pieces of the epochs, for the manifests of checkpoints; None if they are not known, or rounded once."""
    if self.epochs is None or self.rounds_once:
      return None
    return [[first, str(done), str(length)] for first, done, length in self.epochs.pieces]


def effective_batch_size(config: definitions.TrainerConfig, task_config: object) -> int:
  """The examples in one update: `global_batch_size` times `gradient_accumulation_steps`; 0 if a task has neither."""
  data = config_fields.of_task(task_config).train_data
  return (config_fields.of_data(data).global_batch_size or 0) * config.gradient_accumulation_steps


def lengths(
  config: definitions.TrainerConfig,
  task_config: object,
  task: protocols.Task,
  step: int = 0,
  before: Sequence[Sequence[Any]] | None = None,
  num_examples: int | None = None,
) -> Lengths:
  """The lengths of a training that begins, or that resumes at a step.

  Args:
    config: of the trainer.
    task_config: of the task: its `train_data`, if it has any.
    task: knows the number of its training examples, by `num_examples`. It is asked only if a field in epochs is set.
    step: at which it resumes.
    before: the `to_json` of the run that it resumes; None for a new run, or if a version without it has begun the run.
    num_examples: the number of training examples, if it is known.
  """
  given = {name: _fraction(vars(config)[name]) for name in FIELDS if vars(config)[name]}
  batch_size = effective_batch_size(config, task_config)
  if given and num_examples is None:
    num_examples = task.num_examples(config_fields.of_task(task_config).train_data)
  if not (num_examples and batch_size):
    return Lengths(None, given)
  length = Fraction(num_examples, batch_size)
  pieces = [(int(first), Fraction(done), Fraction(steps)) for first, done, steps in before or ()]
  if not pieces:
    return Lengths(Ends(((0, Fraction(0), length),)), given, rounds_once=step > 0)
  if pieces[-1][2] != length:
    pieces = [*(piece for piece in pieces if piece[0] < step), (step, Ends(tuple(pieces)).parts(step), length)]
  return Lengths(Ends(tuple(pieces)), given)


def _fraction(epochs: float) -> Fraction:
  return Fraction(epochs).limit_denominator(_MOST)


def in_steps(
  config: definitions.TrainerConfig, task_config: object, task: protocols.Task, known: Lengths | None = None
) -> dict[str, object]:
  """Computes the steps for fields in epochs, and prints them.

  Args:
    config: of the trainer.
    task_config: of the task: its `train_data`, if it has any.
    task: knows the number of its training examples, by `num_examples`.
    known: the lengths of the training; None for a new one.

  Returns:
    The trainer's fields that change: of intervals, the number of whole steps that is at least an interval. Fields in
    epochs become 0; {} if they already are.

  Raises:
    UserError: the number of examples is not known.
  """
  known = known or lengths(config, task_config, task)
  if not known.given:
    return {}
  if known.epochs is None:
    name = next(iter(known.given))
    raise errors.UserError(
      f'trainer.{name}: {type(task).__name__} does not know the number of its training examples; set '
      f'trainer.{FIELDS[name]} instead'
    )
  num_examples = task.num_examples(config_fields.of_task(task_config).train_data)
  changes: dict[str, object] = {}
  for name, share in known.given.items():
    if name == 'train_epochs':
      whole = known.epochs if known.rounds_once else known.epochs.shares(Fraction(1))
      steps = max(1, whole.end_of(share))
      shown = str(steps)
    else:
      ends = known.epochs.shares(share)
      steps = math.ceil(ends.pieces[-1][2])
      shown = str(steps) if known.rounds_once else ends.steps()
    changes.update({FIELDS[name]: steps, name: 0.0})
    print(f'trainer.{FIELDS[name]}: {shown}, {float(share):g} epochs of {num_examples} examples', flush=True)
  return changes


def position_line(params: definitions.ExperimentConfig, lengths: Lengths, step: int) -> str:
  """Where the input of a resumed run continues, if it has another batch size than before; '' otherwise.

  A step-indexed input begins at the example step x batch size, whatever earlier batches had.

  Args:
    params: of the run.
    lengths: of the run.
    step: the updates that it has done.
  """
  size = effective_batch_size(params.trainer, params.task)
  if lengths.epochs is None or not size or not step:
    return ''
  seen, position = round(lengths.epochs.parts(step) * lengths.epochs.pieces[-1][2] * size), step * size
  if seen == position:
    return ''
  what = f'{seen - position} examples come again' if position < seen else f'{position - seen} examples are passed over'
  return (
    f'task.train_data.global_batch_size: is {size} for an update, and was another: after {seen} examples the input '
    f'continues at example {position}, step x batch size; {what}'
  )
