"""The object that a script hands to its trainer: a callback of Hugging Face and of Keras at once, and of neither.

It has their methods, not their classes, so that no framework is imported for it: `transformers.TrainerCallback` and
`Callback` of Keras 2 and 3 are called by name.
"""

from collections.abc import Mapping
import os
import time
from typing import Any

import official_ext as ext

_OF_EVALUATION = ('eval_', 'val_')
_SUMMARY = 'train_runtime'  # Hugging Face logs once more when training is done.


class Callback:
  """Reports training to its run, and ends it when the run receives a stop signal.

  Hugging Face: `Trainer(..., callbacks=[callback])`. Keras: `model.fit(..., callbacks=[callback])`. A loop of one's
  own calls `log` now and then, and ends if `should_stop` is true after a step:

      for step in range(1, MAX_STEPS + 1):
        ...
        callback.log(step, {'loss': loss})
        if callback.should_stop:
          break

  Attributes:
    summary: the trainer's metrics of the whole training at its end.
    last: the newest values; evaluations' names begin with `validation_`.
  """

  _supports_tf_logs = True  # Keras 2: values are read when they are reported, not at every batch.

  def __init__(self, run: ext.LoopRun):
    """Makes the callback of a run."""
    self._run = run
    self._pace = _Pace()
    self._hugging_face, self._keras = _HuggingFace(self), _Keras(self)
    self.summary: dict[str, object] = {}
    self.last: dict[str, object] = {}

  # For a custom loop.

  @property
  def should_stop(self) -> bool:
    """Whether training must end now."""
    return self._run.stop_requested is not None

  def log(self, step: int, values: Mapping[str, object]) -> None:
    """Reports a step.

    Args:
      step: the number of updates so far.
      values: numbers by name; names that begin with `eval_` or `val_` are an evaluation's.
    """
    self.advance(step)
    self.report(values)

  # For the two below.

  def begin(self, step: int, train_steps: int | None, checkpoint: str | None = None) -> None:
    """Training begins at a step, and ends at another, if that is known."""
    self.expect(train_steps or 0)
    self._run.begin(step, checkpoint)
    self._pace.begin(step)

  def expect(self, train_steps: int) -> None:
    """Training ends at a step; 0 if that is not known."""
    if train_steps != self._run.train_steps:
      self._run.set_length(train_steps)

  def advance(self, step: int) -> None:
    """A step is done."""
    if step != self._run.step or not self._run.has_begun:
      self._run.advance(step)
      self._pace.advance(step)

  def pause(self) -> None:
    """The time since the last step was not training."""
    self._pace.pause()

  def report(self, values: Mapping[str, object]) -> None:
    """Reports to the run training, evaluation, or both."""
    numbers = {name: _as_python(value) for name, value in values.items()}
    if _SUMMARY in numbers:
      self.summary = numbers
      return
    evaluated = {
      name.removeprefix(prefix): value
      for name, value in numbers.items()
      for prefix in _OF_EVALUATION
      if name.startswith(prefix)
    }
    trained = {name: value for name, value in numbers.items() if not name.startswith(_OF_EVALUATION)}
    if trained.keys() - {'epoch'}:
      self.last.update(trained)
      self._run.report('train', {**trained, **self._pace.values(self._run.train_steps)})
    if evaluated:
      self.last.update({f'validation_{name}': value for name, value in evaluated.items()})
      if 'runtime' in evaluated:
        evaluated['seconds'] = evaluated.pop('runtime')
      self._run.report('eval', {**evaluated, **({'epoch': trained['epoch']} if 'epoch' in trained else {})})
    self._pace.start_loop()

  def saved(self, checkpoint: str) -> None:
    """The trainer has written a checkpoint."""
    self._run.report('checkpoint', {'checkpoint': checkpoint})

  @property
  def run(self) -> ext.LoopRun:
    """The run."""
    return self._run

  def __getattr__(self, name: str) -> object:
    """The methods that frameworks call: Hugging Face's get (args, state, control), Keras' do not."""
    if name.startswith('on_'):
      hugging_face, keras = getattr(self._hugging_face, name, _nothing), getattr(self._keras, name, _nothing)
      return lambda *given, **named: (hugging_face if len(given) >= 3 else keras)(*given, **named)
    raise AttributeError(f'{type(self).__name__} has no attribute {name!r}')

  # Keras requires these.

  def set_model(self, model: object) -> None:
    """See Keras."""
    self._keras.model = model

  def set_params(self, params: Mapping[str, object]) -> None:
    """See Keras."""
    self._keras.params = params or {}

  def _implements_train_batch_hooks(self) -> bool:
    return True

  def _implements_test_batch_hooks(self) -> bool:
    return False

  def _implements_predict_batch_hooks(self) -> bool:
    return False


def _nothing(*given: object, **named: object) -> None:
  """The default for hooks that do not matter."""


class _HuggingFace:
  """The methods of a TrainerCallback that matter. Named arguments differ between versions, and are not needed."""

  def __init__(self, callback: Callback):
    self._callback = callback

  def on_train_begin(self, args, state, control, **_):
    checkpoint = os.path.join(args.output_dir, f'checkpoint-{state.global_step}') if state.global_step else None
    # Its path names the folder in which it was saved, and the folder may have been copied or moved since.
    best = getattr(state, 'best_model_checkpoint', None)
    beside = os.path.join(args.output_dir, os.path.basename(best or ''))
    if best and os.path.isdir(beside):
      state.best_model_checkpoint = beside
    self._callback.begin(state.global_step, state.max_steps, checkpoint)

  def on_step_end(self, args, state, control, **_):
    self._callback.advance(state.global_step)
    if self._callback.should_stop:
      control.should_training_stop = True
      control.should_save = control.should_save or not self._callback.run.is_rehearsal

  def on_log(self, args, state, control, logs=None, **_):
    self._callback.report(logs or {})

  def on_evaluate(self, args, state, control, **_):
    self._callback.pause()

  def on_save(self, args, state, control, **_):
    self._callback.pause()
    self._callback.saved(os.path.join(args.output_dir, f'checkpoint-{state.global_step}'))


class _Keras:
  """The methods of a Keras Callback that matter."""

  def __init__(self, callback: Callback):
    self._callback = callback
    self.model: Any = None
    self.params: Mapping[str, Any] = {}
    self._before_epoch = self._step = self._reported = 0

  def on_train_begin(self, logs=None):
    self._callback.begin(0, self._length())

  def _length(self) -> int | None:
    epochs, steps = self.params.get('epochs'), self.params.get('steps')
    return epochs * steps if epochs and steps else None

  def on_epoch_begin(self, epoch, logs=None):
    self._before_epoch = self._step
    self._callback.pause()

  def on_train_batch_end(self, batch, logs=None):
    self._step = self._before_epoch + batch + 1
    self._callback.advance(self._step)
    interval = self._callback.run.params.trainer.summary_interval
    is_last = batch + 1 == self.params.get('steps')  # Reported with the epoch.
    if self._step - self._reported >= interval and not is_last:
      self._report(logs)
    if self._callback.should_stop:
      self.model.stop_training = True

  def on_test_begin(self, logs=None):
    self._callback.pause()

  def on_test_end(self, logs=None):
    self._callback.pause()

  def on_epoch_end(self, epoch, logs=None):
    steps = self._step - self._before_epoch
    if not self.params.get('steps') and self.params.get('epochs') and steps:  # Known from the first epoch on.
      self._callback.expect(self._step + (self.params['epochs'] - epoch - 1) * steps)
    self._report(logs)
    self._callback.pause()

  def _report(self, logs):
    self._reported = self._step
    rate = _learning_rate(self.model)
    self._callback.report({**(logs or {}), **({} if rate is None else {'learning_rate': rate})})


def _learning_rate(model: object) -> float | None:
  optimizer: Any = getattr(model, 'optimizer', None)
  rate = getattr(optimizer, 'learning_rate', None)
  if callable(rate) and not hasattr(rate, 'numpy'):  # A schedule.
    rate = rate(optimizer.iterations)
  try:
    return None if rate is None else float(rate)
  except (TypeError, ValueError):
    return None


def _as_python(value: object) -> object:
  """Numbers as Python's: of tensors and arrays of any framework with one element."""
  if hasattr(value, 'numpy') and not hasattr(value, 'detach'):
    value = value.numpy()
  try:
    return value.item() if hasattr(value, 'item') else value
  except (RuntimeError, ValueError):  # It has more.
    return value


class _Pace:
  """How fast steps are. It counts training alone, without the first step, which compiles."""

  def __init__(self):
    self._first = self._steps = self._before = 0
    self._seconds, self._since = 0.0, time.monotonic()
    self._rate = 0.0

  def begin(self, step: int) -> None:
    """Training begins."""
    self._first = self._before = step
    self.pause()

  def pause(self) -> None:
    """The time since the last step does not count."""
    self._since = time.monotonic()

  def advance(self, step: int) -> None:
    """A step is done."""
    now = time.monotonic()
    if self._before > self._first:
      self._steps += step - self._before
      self._seconds += now - self._since
    self._before, self._since = step, now

  def start_loop(self) -> None:
    """Restarts the measurement."""
    self._steps, self._seconds = 0, 0.0
    self.pause()

  def values(self, train_steps: int) -> dict[str, float]:
    """percent, steps_per_second and eta_seconds, as far as known."""
    found = {}
    if self._steps and self._seconds > 0:
      self._rate = self._steps / self._seconds
    if train_steps:
      found['percent'] = min(100.0, 100.0 * self._before / train_steps)
    if self._rate:
      found['steps_per_second'] = self._rate
      if train_steps:
        found['eta_seconds'] = max(0, train_steps - self._before) / self._rate
    return found
