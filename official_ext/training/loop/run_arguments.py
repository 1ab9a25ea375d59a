"""The arguments of Model Garden's `run_experiment` that this library's loop takes otherwise: used, or refused."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
from typing import Any

import orbit

from official_ext.base import errors
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.loop import experiment_run

RunOptions = experiment_run.RunOptions


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
    base = next((base for base in cls.__mro__[1:] if base.__name__ == 'Trainer'), cls.__mro__[1])
    raise errors.UserError(
      f"{where}: {cls.__name__} derives from {base.__module__}.{base.__name__}, which this library's loop cannot "
      'run; derive it from ext.Trainer'
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
