"""Checks that dropout, noise and batch normalisation are active when the model trains, and only then."""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import sys
import types
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.training.devices import failures
from official_ext.training.diagnosis import findings
from official_ext.training.step import layer_calls
from official_ext.training.step import method_patch

_NOISE = (
  tf_keras.layers.Dropout,
  tf_keras.layers.GaussianDropout,
  tf_keras.layers.AlphaDropout,
  tf_keras.layers.GaussianNoise,
)
_CLASSES = (*_NOISE, tf_keras.layers.BatchNormalization)
_MAX_NAMED = 3


class TrainingModes:
  """Notes the argument `training` of layers that behave differently in training and in evaluation."""

  def __init__(self) -> None:
    self._seen: dict[tuple[str, int], tuple[Any, Any, str, set[Any]]] = {}  # By step and layer.

  @contextlib.contextmanager
  def watching(self, step: str) -> Iterator[None]:
    """A context that watches the calls of this thread in 'train_step' or 'validation_step'."""
    with contextlib.ExitStack() as stack:
      for cls in {next(base for base in cls.__mro__ if 'call' in vars(base)) for cls in _CLASSES}:
        stack.enter_context(method_patch.MethodPatch(cls, 'call', functools.partial(self._noting, step)))
      stack.enter_context(layer_calls.followed())
      yield

  def _noting(self, step, call):

    @functools.wraps(call)  # By the name of its module, AutoGraph knows not to convert it.
    def noting(layer, inputs, *args, **kwargs):
      self._note(step, layer, args[0] if args else kwargs.get('training'))
      return call(layer, inputs, *args, **kwargs)

    return noting

  def _note(self, step, layer, training):
    if getattr(layer, 'rate', 1) == 0 or getattr(layer, 'stddev', 1) == 0:
      return
    if not isinstance(layer, _NOISE) and not layer.trainable:  # It is frozen: its statistics must not change.
      return
    if tf.is_tensor(training):
      training = bool(training) if hasattr(training, 'numpy') else True
    root = layer_calls.current_root()
    _, _, _, modes = self._seen.setdefault((step, id(layer)), (layer, root, _caller(), set()))
    modes.add(training if training is None else bool(training))

  def find(self, has_gradient: Mapping[int, bool]) -> list[findings.Finding]:
    """Finds layers that are called with the wrong `training`.

    Args:
      has_gradient: by the id of a variable, whether an optimizer got its gradient. A model that is not trained, such as
        a teacher, may be called in either way.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for (step, _), (layer, root, place, modes) in self._seen.items():
      trains = any(has_gradient.get(id(v)) for v in getattr(root, 'trainable_variables', ()))
      if step == 'train_step' and trains and True not in modes:
        said = 'without `training`' if modes == {None} else 'with training=False'
        what = f'called {said} in train_step: a model that trains has it switched off'
        found.setdefault((place, what, 'call the model with training=training'), []).append(layer.name)
      elif step == 'validation_step' and True in modes:
        what = 'called with training=True in validation_step: the result depends on chance, or on the rest of the batch'
        found.setdefault((place, what, 'call the model with training=False there'), []).append(layer.name)
    return [
      findings.Finding('warning', place, f'{_listed(names)} {"are" if len(names) > 1 else "is"} {what}', remedy)
      for (place, what, remedy), names in found.items()
    ]


def _listed(names: list[str]) -> str:
  more = f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else ''
  return ', '.join(names[:_MAX_NAMED]) + more


def _caller() -> str:
  """The line of the user's code that calls the outermost layer; 'task' if that is not the user's."""
  frame: types.FrameType | None = sys._getframe(2)  # pylint: disable=protected-access
  frames = []
  while frame is not None:
    frames.append(frame)
    frame = frame.f_back
  inside = [number for number, frame in enumerate(frames) if frame.f_code.co_filename == layer_calls.__file__]
  for frame in frames[inside[-1] if inside else 0 :]:
    if failures.is_users(frame.f_code.co_filename):
      name = frame.f_code.co_qualname.rpartition('<locals>.')[2]
      return failures.at_line(frame.f_code.co_filename, frame.f_lineno, name)
  return 'task'
