"""Runs a tf_keras callback as an action of a run.

def build_actions(self, trainer):
  return [keras_callbacks.KerasCallback(tf_keras.callbacks.CSVLogger('log.csv'), trainer)]
"""

from collections.abc import Iterator, Mapping
import contextlib
import math
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base.run_folder import metric_direction
from official_ext.base.run_folder import run_files
from official_ext.training.actions import triggers
from official_ext.training.config import epochs
from official_ext.training.step import gradient_tap
from official_ext.training.step import keras_version
from official_ext.training.writers import writers

_PLAIN = (bool, int, float, str, type(None))
_WEIGHTS = 'weights'  # The entry of the state that names attributes with weights, which it does not have.


class KerasCallback(triggers.Trigger):
  """Calls a Keras callback as `Model.fit` does, except for its batch hooks: batches run inside compiled loops.

  In mode train_and_eval, an epoch ends with every evaluation, as if `fit` ran an epoch for each
  `trainer.validation_interval`. In other modes that train, it is an epoch of the training data. Epochs count from 0,
  and follow from the step: a resumed run does not start with epoch 0.

  | hook | when |
  | --- | --- |
  | on_train_begin, then on_epoch_begin | before the first step of this process, after the restore |
  | on_test_begin, on_test_end, on_epoch_end | after an evaluation |
  | on_epoch_begin | right after on_epoch_end, unless training is over |
  | on_train_end | when training is done, before the last checkpoint; not for a run that fails or is preempted |

  Logs of an epoch have Keras' names: `loss` and the training metrics, as means over the epoch's steps; `val_loss` and
  the other metrics of the evaluation, with `val_` in front; `lr`. `self.model` is the model, with `optimizer` and
  `stop_training`. `self.params` has epochs, steps (of an epoch) and verbose (0).

  A checkpoint keeps the attributes of the callback that are numbers, strings, booleans or scalar variables and that
  have changed since `set_model`, such as the counts of EarlyStopping or a rate that on_train_begin reads. It keeps no
  lists and no weights (`restore_best_weights`), of which a resume warns. It keeps `stop_training`: a stopped run does
  not continue unless settings of the callback change.

  A run that resumes within an epoch calls on_train_begin and on_epoch_begin of that epoch again, so that they set up
  the new process. Afterwards the model's weights, the optimizer's constants (the learning rate) and the kept attributes
  are restored from the checkpoint: their changes count once.

  Example:

    >>> class Stop(tf_keras.callbacks.Callback):
    ...   def on_epoch_end(self, epoch, logs=None):
    ...     self.model.stop_training = logs['loss'] < 0.1
    >>> class Task(ext.Task):
    ...   def build_actions(self, trainer):
    ...     return [ext.KerasCallback(Stop(), trainer)]
  """

  def __init__(
    self, callback: tf_keras.callbacks.Callback, trainer: protocols.Trainer, steps_per_epoch: int | None = None
  ):
    """Initializes the trigger.

    Args:
      callback: a callback of tf_keras.
      trainer: of the run.
      steps_per_epoch: the length of an epoch if the run does not evaluate while it trains. None: one pass over the
        training data.

    Raises:
      ValueError: `callback` is not a callback of tf_keras.
      UserError: it has batch hooks, is a callback of Keras 3, or takes the worst values of a metric for the best.
    """
    if keras_version.is_of_keras_3(callback):
      raise errors.UserError(
        f'build_actions: {type(callback).__name__} is a Keras 3 callback; use that of tf_keras.callbacks'
      )
    if not isinstance(callback, tf_keras.callbacks.Callback):
      raise ValueError(f'build_actions: {callback!r} is not a tf_keras.callbacks.Callback')
    name = type(callback).__name__
    if tf_internals.has_batch_hooks(callback):
      raise errors.UserError(
        f'build_actions: the Keras callback {name} needs calls at batches, which run inside a compiled loop; '
        'use triggers.EveryNSteps, or its option to work by epochs'
      )
    _check_direction(callback)
    super().__init__((triggers.BEGIN, 'rollback', 'train', 'eval', triggers.TRAINED), self._hear)
    self.name = f'{self.name}/{name}'
    self._callback, self._trainer = callback, trainer
    self._ends = epochs.every(steps_per_epoch or 0)
    self._ends_with = 'train'
    self._settings: dict[str, object] = {}  # Plain attributes before on_train_begin.
    self._baseline: dict[str, object] | None = None  # Plain attributes after on_train_begin; None before.
    self._restored: json_values.JsonMapping = {}  # {}: the training has not begun in it.
    self._epoch: int | None = None  # Has begun and not ended.
    self._last_step = 0
    self._sums: dict[str, float] = {}
    self._logs: dict[str, float] = {}

  def prepare(self, mode: str) -> None:
    """See base class.

    Raises:
      UserError: the length of an epoch is not known.
    """
    config, lengths = self._trainer.config.trainer, self._trainer.speed.lengths
    if mode == 'train_and_eval':
      self._ends, self._ends_with = lengths.ends('validation_interval', config.validation_interval), 'eval'
    elif self._ends is None:
      self._ends = lengths.whole_epochs()
    if self._ends is None:
      raise errors.UserError(
        f'build_actions: {self.name}: the task does not know the number of its training examples; give steps_per_epoch'
      )
    self.interval = self._ends
    inner = gradient_tap.inner_optimizer(self._trainer.optimizer)
    self._model = _ModelView(self._trainer.model, inner)
    self._callback.set_model(self._model)
    num_epochs, num_steps = math.ceil(self._ends.parts(config.train_steps)), math.ceil(self._ends.pieces[-1][2])
    if self._ends.is_end(config.train_steps):
      num_epochs = self._ends.count(config.train_steps)
    self._callback.set_params({'epochs': num_epochs, 'steps': num_steps, 'verbose': 0})
    self._settings = _plain_attributes(self._callback)

  def state(self) -> json_values.JsonObject:
    """See base class."""
    if self._baseline is None:
      return dict(self._restored)
    attributes = {
      name: value
      for name, value in _plain_attributes(self._callback).items()
      if name not in self._settings or self._settings[name] != value
    }
    state = {'attributes': attributes, 'sums': dict(self._sums), 'logs': dict(self._logs), 'epoch': self._epoch}
    if weights := [name for name, value in vars(self._callback).items() if _are_weights(value)]:
      state[_WEIGHTS] = weights
    return {**state, 'stopped': self._settings} if self._model.stop_training else state

  def restore(self, state: json_values.JsonMapping) -> None:
    """See base class."""
    self._restored = dict(state)
    self._sums, self._logs = dict(state.get('sums', {})), dict(state.get('logs', {}))
    self._epoch = state.get('epoch')
    if self._baseline is not None:
      attributes = {**self._settings, **state['attributes']} if state else {}
      _set_attributes(self._callback, {**self._baseline, **attributes})
    self._model.stop_training = 'stopped' in state and state['stopped'] == self._settings
    self._stop_if_asked()

  @property
  def _epochs(self) -> epochs.Ends:
    assert self._ends is not None, 'prepare comes first'
    return self._ends

  def _hear(self, logs: triggers.Logs) -> None:
    event, step = logs['event'], int(logs['step'])
    if event == triggers.BEGIN:
      self._begin(step)
    elif self._baseline is None:  # Nothing is trained: this is an evaluation alone.
      return
    elif event == 'rollback':
      self._rolled_back(step)
    elif event == 'train':
      self._add(logs, step)
    elif event == 'eval' and self._ends_with == 'eval':
      self._callback.on_test_begin({})
      self._callback.on_test_end(self._named(logs, ''))
    if event == triggers.TRAINED:
      if self._sums and self._ends_with == 'train':  # Cut short by the end of training.
        self._end_epoch({}, step)
      self._callback.on_train_end(dict(self._logs))
    elif event == self._ends_with and (event == 'eval' or self._epochs.is_end(step)):
      self._end_epoch(self._named(logs, 'val_') if event == 'eval' else {}, step)

  def _begin(self, step: int) -> None:
    with self._keeping_variables() if self._restored else contextlib.nullcontext():
      self._callback.on_train_begin({})
    for name in self._restored.get(_WEIGHTS, ()):
      logging.warning(
        'The weights in %s.%s are not in the checkpoint from which the run resumes: the callback has those of later '
        'epochs alone. trainer.best_checkpoint_export_subdir keeps the best ones.',
        type(self._callback).__name__,
        name,
      )
    self._baseline = _plain_attributes(self._callback)
    _set_attributes(self._callback, self._restored.get('attributes', {}))
    self._enter_epoch(step)

  def _rolled_back(self, step: int) -> None:
    """Takes up a restored checkpoint; one from before on_train_begin requires that hook again."""
    if self._restored:
      self._enter_epoch(step)
    else:
      self._begin(step)

  def _enter_epoch(self, step: int) -> None:
    """Begins the epoch of a step, or takes up the epoch that has begun in the restored checkpoint."""
    self._last_step = step
    if self._epoch is None:
      self._begin_epoch(self._epochs.count(step))
      return
    attributes = _plain_attributes(self._callback)
    with self._keeping_variables():
      self._callback.on_epoch_begin(self._epoch, {})
    _set_attributes(self._callback, attributes)
    self._stop_if_asked()
    if self._ends_with == 'train' and self._epochs.count(step) > self._epoch:
      self._end_epoch({}, step)  # Another action failed before this one saw the last step, which was saved.

  def _begin_epoch(self, epoch: int) -> None:
    self._epoch = epoch
    self._callback.on_epoch_begin(epoch, {})
    self._stop_if_asked()

  @contextlib.contextmanager
  def _keeping_variables(self) -> Iterator[None]:
    """A context that undoes changes of the model's weights and of the optimizer's constants at its end."""
    model, optimizer = self._trainer.model, self._trainer.optimizer
    is_built = not isinstance(model, tf_keras.layers.Layer) or model.built
    variables = [*(tf_internals.variables_of(model) if is_built else ()), *gradient_tap.hyperparameters(optimizer)]
    # Copies on the device: fewer bytes than the gradients of a step.
    before = [tf.identity(variable.read_value()) for variable in variables]
    yield
    for variable, value in zip(variables, before):
      # An assignment to variables of several replicas that differ would make them equal.
      if tf.reduce_any(tf.not_equal(variable.read_value(), value)):
        variable.assign(value)

  def _add(self, logs: triggers.Logs, step: int) -> None:
    """Adds the means of a loop to the sums of the epoch; the learning rate is the last loop's."""
    num_steps = max(1, step - self._last_step)
    self._last_step = step
    for name, value in self._named(logs, '').items():
      self._sums[name] = self._sums.get(name, 0.0) + num_steps * value
      self._logs[name] = value
    self._sums[''] = self._sums.get('', 0.0) + num_steps

  def _end_epoch(self, evaluated: Mapping[str, float], step: int) -> None:
    if self._epoch is None:  # An evaluation after the end of training.
      return
    num_steps = self._sums.pop('', 0.0)
    self._logs.update({name: value / num_steps for name, value in self._sums.items() if name != 'lr'})
    self._logs.update(evaluated)
    self._sums, self._last_step, ended, self._epoch = {}, step, self._epoch, None
    self._callback.on_epoch_end(ended, dict(self._logs))
    self._stop_if_asked()
    if step < self._trainer.config.trainer.train_steps:
      self._begin_epoch(max(ended + 1, self._epochs.count(step)))

  def _stop_if_asked(self) -> None:
    if self._model.stop_training:
      raise errors.StopTraining(f'the Keras callback {type(self._callback).__name__} has set model.stop_training')

  def _named(self, logs: triggers.Logs, prefix: str) -> dict[str, float]:
    """The numbers of logs that concern the model, not the run, by the names that Keras gives them."""
    known = {self._trainer.train_loss.name: 'loss', self._trainer.validation_loss.name: 'loss', 'learning_rate': 'lr'}
    found = {}
    for name, value in writers.flatten(logs).items():
      if isinstance(value, (int, float)) and name not in run_files.PROGRESS | {'step'}:
        found[prefix + known.get(name, name)] = float(value)
    return found


class _ModelView:
  """The model as a callback of `fit` sees it: with an optimizer, which the model itself must not have."""

  def __init__(self, model: tf_keras.Model, optimizer: protocols.Optimizer):
    vars(self).update(_model=model, optimizer=optimizer, stop_training=False)

  def __getattr__(self, name: str) -> object:
    return getattr(vars(self)['_model'], name)

  def __setattr__(self, name: str, value: object) -> None:
    if name not in vars(self) and hasattr(self._model, name):
      setattr(self._model, name, value)
    else:
      vars(self)[name] = value


def _check_direction(callback: tf_keras.callbacks.Callback) -> None:
  """Refuses a direction that contradicts the metric's name. Keras' 'auto' is 'min' for all but accuracies and AUC."""
  keras = tf_keras.callbacks
  if isinstance(callback, keras.ReduceLROnPlateau):
    is_max = callback.mode == 'max' or (callback.mode != 'min' and 'acc' in callback.monitor)
  elif isinstance(callback, keras.EarlyStopping) or (
    isinstance(callback, keras.ModelCheckpoint) and callback.save_best_only
  ):
    is_max = callback.monitor_op is np.greater
  else:
    return
  right = metric_direction.direction(callback.monitor)
  if right not in (None, 'max' if is_max else 'min'):
    raise errors.UserError(
      f'build_actions: the Keras callback {type(callback).__name__} takes {"higher" if is_max else "lower"} values of '
      f"{callback.monitor} for better, of which {metric_direction.WORDS[right]} is better; give mode='{right}'"
    )


def _are_weights(value: object) -> bool:
  return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, np.ndarray) for each in value)


def _plain_attributes(callback: object) -> dict[str, object]:
  found = {name: writers.to_python(value) for name, value in vars(callback).items()}
  return {name: value for name, value in found.items() if isinstance(value, _PLAIN)}


def _set_attributes(callback: object, values: Mapping[str, Any]) -> None:
  """Sets plain attributes; a variable stays one, as others may hold it too."""
  for name, value in values.items():
    attribute = vars(callback).get(name)
    if attribute is not None and hasattr(attribute, 'assign'):
      attribute.assign(value)
    else:
      setattr(callback, name, value)
