"""Describes an experiment to run: the arguments of `run_experiment`, its options, and the results of its checks."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
from typing import Any

from absl import flags
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.training.checkpoints import training_lines
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import signals
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """Options of `run_experiment` that most callers do not need.

  Attributes:
    train_actions: called with the logs of every training loop.
    eval_actions: called with the logs of every evaluation.
    trainer: instead of the default one; made inside the strategy's scope.
    controller_cls: a `Controller` subclass, or a function that makes one.
    checkpoint: the path of the checkpoint to evaluate instead of the newest in `model_dir`; or from which a training
      starts that has no checkpoint yet.
    branch: whether a training may start at `checkpoint` although `model_dir` has others: see training_lines.py.
    watch: whether the process received a stop signal; None watches no signals.
    profile_steps: the first and the last step to profile: see profiling.py. Not with a `trainer`, which has a profiler.
    origin: the `experiment`'s name and the modules of its `registry`, which run.json keeps for those who load the
      model; None: the name that a driver with Model Garden's flags was given.

  Example:

    >>> ext.RunOptions(checkpoint='runs/first/ckpt-100', branch=True).checkpoint
    'runs/first/ckpt-100'
  """

  train_actions: Sequence[orbit.Action] = ()
  eval_actions: Sequence[orbit.Action] = ()
  trainer: base_trainer.Trainer | None = None
  controller_cls: Callable[..., controller.Controller] = controller.Controller
  checkpoint: str | None = None
  branch: bool = False
  watch: signals.PreemptionWatch | None = None
  profile_steps: tuple[int, int] | None = None
  origin: json_values.JsonMapping | None = None


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment to run: the arguments of `run_experiment`; once checked, the start of the run, and its code.

  Attributes:
    strategy: the strategy.
    task: made inside its scope.
    mode: see `train_lib.run_experiment`.
    params: the upgraded configuration; once checked, with its lengths in steps.
    model_dir: the run's folder.
    run_post_eval: whether to evaluate once after training.
    save_summary: whether to write TensorBoard files.
    options: further options.
    start: the checkpoints that the run begins with.
    epochs_so_far: the step at which a training starts, and the epochs up to there: see `epochs.lengths`.
    lengths: the lengths in epochs, as far as they are known before the trainer is made.
    code: `code` and `versions` of the run: see code_identity.py.
  """

  strategy: tf.distribute.Strategy
  task: Any
  mode: str
  params: definitions.ExperimentConfig
  model_dir: str
  run_post_eval: bool = False
  save_summary: bool = True
  options: RunOptions = RunOptions()
  start: training_lines.Start = training_lines.Start()
  epochs_so_far: tuple[int, Any] = (0, None)
  lengths: epochs.Lengths = epochs.Lengths()
  code: json_values.JsonMapping = dataclasses.field(default_factory=dict)

  @property
  def trains(self) -> bool:
    """Whether the mode trains."""
    return 'train' in self.mode

  @property
  def evaluates(self) -> bool:
    """Whether the run evaluates, now or at its end."""
    return 'eval' in self.mode or self.run_post_eval

  @property
  def is_chief(self) -> bool:
    """Whether this worker writes checkpoints and logs."""
    return self.strategy.extended.should_checkpoint

  @property
  def workers(self) -> workers_lib.Workers:
    """All workers of the run."""
    return workers_lib.get(self.strategy)


def origin_by_flag() -> json_values.JsonObject | None:
  """The origin of the experiment that Model Garden's flag --experiment of a custom driver names; None without it."""
  name = flags.FLAGS.experiment if flags.FLAGS.is_parsed() and 'experiment' in flags.FLAGS else None
  return {'experiment': name} if isinstance(name, str) and name else None


def merged(
  options: RunOptions | None,
  given: Mapping[str, Any],
  summary_manager: orbit.utils.SummaryManager | None,
  eval_summary_manager: orbit.utils.SummaryManager | None,
) -> RunOptions:
  """Joins the arguments of a call to its options.

  Args:
    options: those of the call; None for the defaults.
    given: values of `train_actions`, `eval_actions`, `trainer` and `controller_cls`; None for those not given.
    summary_manager: writes the logs of every training loop; None for none.
    eval_summary_manager: writes the logs of every evaluation; None for none.

  Raises:
    UserError: a value is given twice, or the library's loop cannot use it.
  """
  options, default = options or RunOptions(), RunOptions()
  values = {name: value for name, value in given.items() if value and value is not orbit.Controller}
  for name in values:
    if getattr(options, name) != getattr(default, name):
      raise errors.UserError(f'run_experiment: {name}: given twice, as an argument and in options; leave one out')
  options = dataclasses.replace(options, **values)
  if options.trainer is not None:
    check_trainer_class('run_experiment: trainer', type(options.trainer))
  _check_controller(options.controller_cls)
  return dataclasses.replace(
    options,
    checkpoint=paths.local(options.checkpoint) if options.checkpoint else None,
    train_actions=[*options.train_actions, *_writing(summary_manager)],
    eval_actions=[*options.eval_actions, *_writing(eval_summary_manager)],
  )


def check_trainer_class(where: str, cls: object) -> None:
  """Refuses a trainer that the library's loop cannot run. A function that makes one is not checked.

  Args:
    where: names the place of the value, for the message.
    cls: the trainer's class.

  Raises:
    UserError: it is a class that does not derive from this library's trainer, such as one of Model Garden's.
  """
  if inspect.isclass(cls) and not issubclass(cls, base_trainer.Trainer):
    base = next((base for base in cls.__mro__ if base.__name__ == 'Trainer'), cls.__mro__[1])
    what = f'{base.__module__}.{base.__name__}'
    if cls is base:
      raise errors.UserError(f"{where}: is {what}, which this library's loop cannot run; make an ext.Trainer instead")
    raise errors.UserError(
      f"{where}: {cls.__name__} derives from {what}, which this library's loop cannot run; derive it from ext.Trainer"
    )


def _check_controller(cls: Callable[..., object]) -> None:
  if inspect.isclass(cls) and not issubclass(cls, controller.Controller):
    raise errors.UserError(
      f"run_experiment: controller_cls: {cls.__name__} does not derive from this library's loop, which saves and "
      'resumes; use train_actions, eval_actions or Task.build_actions instead'
    )


def _writing(manager: orbit.utils.SummaryManager | None) -> Sequence[Callable[[Mapping[str, Any]], None]]:
  """The action that writes logs by a summary manager; none for None."""
  if manager is None:
    return []

  def write(logs: Mapping[str, Any]) -> None:
    manager.write_summaries(logs)
    manager.flush()

  return [write]
