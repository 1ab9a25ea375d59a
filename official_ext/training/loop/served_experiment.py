"""Dispatcher and workers of a tf.data service that makes the batches of one experiment.

TensorFlow's own servers run here, in a process that has built the experiment's inputs: sources are read by Python
functions, which no graph can carry to another machine.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from absl import logging
from official.core import task_factory
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.data import bad_examples
from official_ext.data.service import served_inputs
from official_ext.data.service import worker
from official_ext.training.config import definitions
from official_ext.training.loop import input_report
from official_ext.training.loop import loop_task
from official_ext.training.loop import required_fields
from official_ext.training.loop import training_input

_service = tf.data.experimental.service
_HEARTBEAT_MS = 1000


def build_inputs(params: definitions.ExperimentConfig) -> Mapping[str, served_inputs.ServedInput]:
  """Builds the training and the validation input of an experiment, as a run would, and returns them by their keys.

  If the data allow no run that evaluates, the input of --mode=train is returned, and a warning names the reason.

  Raises:
    UserError: the data allow no run, or the task has no input that is indexed by step.
  """
  task = task_factory.get_task(params.task)
  found: Mapping[str, served_inputs.ServedInput] = {}
  if not isinstance(task, loop_task.LoopTask):
    with served_inputs.collected() as found, required_fields.named(params.task, type(task).__name__):
      if hasattr(task, 'evaluates'):  # Of runs that do not evaluate: nothing is held out.
        task.evaluates = False
        _build_input(task, params, 'train_data')
        task.evaluates = True
      try:
        for name in ('train_data', 'validation_data'):
          _build_input(task, params, name)
      except errors.UserError as error:
        if not found:
          raise
        logging.warning('Only --mode=train is served: %s', error)  # Prepared rows are not divided.
  if not found:
    raise errors.UserError(
      f'{type(task).__name__}: its input is not indexed by step; ordinary tf.data pipelines are served by the workers '
      'of tf.data.experimental.service, which need no experiment'
    )
  return found


def _build_input(task: protocols.Task, params: definitions.ExperimentConfig, name: str) -> None:
  data = getattr(params.task, name, None)
  if data is None or not data.global_batch_size:
    return
  try:
    with input_report.InputReport(f'task.{name}', data, task).building():
      task.build_inputs(data)
  except Exception as error:
    mistake = training_input.mistake_in_data(params, data, error)
    if mistake is None:
      raise
    raise mistake from error


@dataclasses.dataclass
class Servers:
  """The servers of one process; they end with it.

  Attributes:
    address: of the dispatcher, as `--tf_data_service` takes it.
    answers: of the worker.
    parts: objects that must live as long as they serve.
  """

  address: str
  answers: worker.Answers
  parts: list[Any]


def start(
  inputs: Mapping[str, served_inputs.ServedInput], host: str, port: int, dispatcher: str, worker_port: int
) -> Servers:
  """Starts a worker, and its dispatcher if there is none.

  Args:
    inputs: of the worker.
    host: the name of this machine, for others.
    port: of the dispatcher to start; 0: any.
    dispatcher: HOST:PORT of an existing one; '': it is started here.
    worker_port: of the worker; 0: any.

  Raises:
    UserError: a port is taken.
  """
  answers = worker.Answers(inputs)
  worker.register(answers)
  parts: list[Any] = []
  flag = '--worker_port' if dispatcher else '--port'
  try:
    if not dispatcher:
      parts.append(_service.DispatchServer(_service.DispatcherConfig(port=port)))
      dispatcher = f'{host}:{parts[0].target.rpartition(":")[2]}'
      flag = '--worker_port'
    address = f'{host}:{worker_port or "%port%"}'
    parts.append(
      _service.WorkerServer(
        _service.WorkerConfig(dispatcher, worker_address=address, port=worker_port, heartbeat_interval_ms=_HEARTBEAT_MS)
      )
    )
  except (tf.errors.OpError, RuntimeError) as error:
    raise errors.UserError(f'{flag}: no server could be started: {bad_examples.one_line(error)}') from error
  return Servers(f'grpc://{dispatcher}', answers, parts)
