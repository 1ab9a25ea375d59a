"""Runs the steps of a task eagerly, a few times, and looks for mistakes.

Among them: a `forward` that adds the model's own losses, which `ext.Task` adds as well; dropout, noise or batch
normalisation that is off in training or on in evaluation.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import functools
import inspect
import sys
import textwrap
import types
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import package_imports
from official_ext.base import protocols
from official_ext.base import tracebacks
from official_ext.training.config import definitions
from official_ext.training.diagnosis import batch_checks
from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import finite_checks
from official_ext.training.diagnosis import step_watch
from official_ext.training.optimization import ema_optimizer
from official_ext.training.step import observers
from official_ext.training.step import step_random
from official_ext.training.tasks import base_task


def find_model_losses(task: base_task.Task, model: Any, batch: Any) -> Sequence[findings.Finding]:
  """Looks for a loss of `forward` that depends on `model.losses`.

  The model gets one more loss, a variable of value 0. A derivative of the loss with respect to it shows that `forward`
  adds the model's losses; one that only logs them has none. Losses by index, or computed again from the weights, are
  not found.

  Args:
    task: its `forward` is called once, in training.
    model: has run a step. It keeps the additional loss.
    batch: one of the training data.
  """
  steps_are_ours = all(
    getattr(type(task), name) is getattr(base_task.Task, name) for name in ('train_step', '_loss_and_logs')
  )
  if not steps_are_ours or not (isinstance(model, tf_keras.layers.Layer) and model.losses):
    return []
  probe = tf.Variable(0.0, trainable=False)
  model.add_loss(lambda: tf.identity(probe))
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(probe)
    loss, _ = task.forward(batch, model, training=True)
  if tape.gradient(loss, probe) is None:
    return []
  return [
    findings.Finding(
      'error',
      tracebacks.of_function(task.forward),
      "the loss of forward includes model.losses (regularizers), which the task's steps add too: they count twice",
      'remove model.losses from the loss that forward returns',
    )
  ]


_NOISE = (
  tf_keras.layers.Dropout,
  tf_keras.layers.GaussianDropout,
  tf_keras.layers.AlphaDropout,
  tf_keras.layers.GaussianNoise,
)
_CLASSES = (*_NOISE, tf_keras.layers.BatchNormalization)
_MAX_NAMED_LAYERS = 3


class TrainingModes:
  """Notes the argument `training` of layers that behave differently in training and in evaluation."""

  def __init__(self) -> None:
    self._seen: dict[tuple[str, int], tuple[Any, Any, str, set[Any]]] = {}  # By step and layer.

  @contextlib.contextmanager
  def watching(self, step: str) -> Iterator[None]:
    """A context that watches the calls of this thread in 'train_step' or 'validation_step'."""
    with contextlib.ExitStack() as stack:
      for cls in {next(base for base in cls.__mro__ if 'call' in vars(base)) for cls in _CLASSES}:
        stack.enter_context(observers.MethodPatch(cls, 'call', functools.partial(self._noting, step)))
      stack.enter_context(observers.followed())
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
    root = observers.current_root()
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
      trains = any(has_gradient.get(id(v)) for v in _trainable_variables(root))
      if step == 'train_step' and trains and True not in modes:
        how = 'without `training`' if modes == {None} else 'with training=False'
        what = f'called {how} in train_step: a model that trains has it switched off'
        found.setdefault((place, what, 'call the model with training=training'), []).append(layer.name)
      elif step == 'validation_step' and True in modes:
        what = 'called with training=True in validation_step: the result depends on chance, or on the rest of the batch'
        found.setdefault((place, what, 'call the model with training=False there'), []).append(layer.name)
    return [
      findings.Finding('warning', place, f'{_listed(names)} {"are" if len(names) > 1 else "is"} {what}', remedy)
      for (place, what, remedy), names in found.items()
    ]


def _listed(names: list[str]) -> str:
  more = f' and {len(names) - _MAX_NAMED_LAYERS} more' if len(names) > _MAX_NAMED_LAYERS else ''
  return ', '.join(names[:_MAX_NAMED_LAYERS]) + more


def _caller() -> str:
  """The line of the user's code that calls the outermost layer; 'task' if that is not the user's."""
  frame: types.FrameType | None = sys._getframe(2)  # pylint: disable=protected-access
  frames = []
  while frame is not None:
    frames.append(frame)
    frame = frame.f_back
  inside = [number for number, frame in enumerate(frames) if frame.f_code.co_filename == observers.__file__]
  for frame in frames[inside[-1] if inside else 0 :]:
    if tracebacks.is_users(frame.f_code.co_filename):
      name = frame.f_code.co_qualname.rpartition('<locals>.')[2]
      return tracebacks.at_line(frame.f_code.co_filename, frame.f_lineno, name)
  return 'task'


_MAX_STEPS = 3  # Dynamic loss scaling may skip the first ones.
_MAX_NAMED = 3


class StepRun:
  """A model with its optimizer and metrics, and the findings of their steps so far.

  Attributes:
    found: the findings.
    model: the task's.
    found_broadcasts: whether labels and predictions broadcast.
  """

  def __init__(
    self,
    task: protocols.Task,
    params: definitions.ExperimentConfig,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
  ):
    self.found: list[findings.Finding] = []
    self.found_broadcasts = False
    self._task = task
    self._params = params
    self._watch = step_watch.StepWatch()
    self.model = model
    self._optimizer = optimizer
    self._modes = TrainingModes()
    self._gradients: dict[int, bool] = {}  # By the id of a variable, whether it got a gradient.
    self._not_finite: list[tuple[str, object]] = []  # Gradients and losses, with their names.
    ema = ema_optimizer.adopt(self._optimizer)
    if ema is not None and not ema.has_shadow_copy:
      ema.shadow_copy(self.model)

  def train(self, batches: Sequence[Any]) -> None:
    """Runs two steps, and a third one if they have changed nothing.

    They run in the middle of the learning rate's schedule, because warm-ups begin at 0.
    """
    task, model, optimizer = self._task, self.model, self._optimizer
    metrics = step_watch.Metrics(task.build_metrics(training=True))
    start = self._params.trainer.train_steps // 2
    if hasattr(optimizer, 'iterations'):
      optimizer.iterations.assign(start)
    before: list[np.ndarray] = []
    changed = False
    for number in range(_MAX_STEPS):
      weights = _trainable_variables(model)
      before = [variable.numpy() for variable in weights] if number == 0 and _built(model) else before
      with self._eager_step(start + number), metrics.watching(), self._modes.watching('train_step'):
        state = self._state() if number else {}
        with self._watch.watching(self._containers()) if number else contextlib.nullcontext():
          logs = task.train_step(batches[number % len(batches)], model=model, optimizer=optimizer, metrics=metrics.all)
        self._compare(state)
      self._see_loss(logs, task.train_step)
      if self._not_finite:
        self._report_not_finite('train_step', batches[number % len(batches)], start + number)
        break
      if not before:  # The first call has built it.
        before = [variable.numpy() for variable in model.trainable_variables]
        continue
      changed = any(
        not np.array_equal(old, new.numpy(), equal_nan=True) for old, new in zip(before, model.trainable_variables)
      )
      if changed and number:
        break
    if not self._not_finite:
      self._check_update(changed, logs)
    self._check_metrics(metrics, 'train_step', {})
    if isinstance(task, base_task.Task):
      with step_random.step_key(self._key(start)):
        self.found += find_model_losses(task, model, batches[0])

  def validate(self, batch: object) -> None:
    """Runs one validation step."""
    task = self._task
    metrics = step_watch.Metrics(task.build_metrics(training=False))
    self._not_finite = []
    with self._eager_step(0), metrics.watching(), self._modes.watching('validation_step'):
      with self._watch.watching(self._containers()):
        logs = task.validation_step(batch, self.model, metrics=metrics.all)
    self._see_loss(logs, task.validation_step)
    self._check_metrics(metrics, 'validation_step', logs)
    if self._not_finite:
      self._report_not_finite('validation_step', batch, 0)
    elif _users_classes(task):
      trace = finite_checks.OpTrace()
      with contextlib.suppress(Exception):  # One of the task's tf.functions that does not run as Python.
        with self._eager_step(0), trace.recording():
          task.validation_step(batch, self.model, metrics=task.build_metrics(training=False))
      self.found += finite_checks.logarithms(trace, tracebacks.is_users)

  def find_broadcasts(self, batch: object) -> None:
    """Traces the validation step, and looks for labels and predictions that broadcast. It runs nothing."""
    task = self._task
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)

    def step(inputs):
      with step_random.step_key(self._key(0)):
        task.validation_step(inputs, self.model, metrics=[])

    with observers.noted_broadcasts() as shapes, contextlib.suppress(Exception):  # A step that only runs eagerly.
      tf.function(step).get_concrete_function(specs)
    place = tracebacks.of_function(task.forward if isinstance(task, base_task.Task) else task.validation_step)
    for each in dict.fromkeys(shapes):
      self.found_broadcasts = True
      what, remedy = observers.broadcast_warning(each)
      self.found.append(findings.Finding('warning', place, what, remedy))

  def try_batch(self, batch: object, trains: bool) -> None:
    """Runs one step on a batch, only to see whether it raises an error."""
    task = self._task
    metrics = list(task.build_metrics(training=trains) or ())
    with self._eager_step(self._params.trainer.train_steps // 2 if trains else 0):
      with self._watch.watching({}):
        if trains:
          task.train_step(batch, model=self.model, optimizer=self._optimizer, metrics=metrics)
        else:
          task.validation_step(batch, self.model, metrics=metrics)

  def loss_of(self, batch: Any) -> float:
    """The loss that `forward` returns for a batch in evaluation; only for a task that has `forward`."""
    task: Any = self._task  # Model Garden's has no `forward`.
    with step_random.step_key(self._key(0)):
      loss, _ = task.forward(batch, self.model, training=False)
    return float(loss)

  def find_mixing(self, batch: Any, size: int, validates: bool) -> bool:
    """Looks for a loss of a batch that is not a mean over its examples.

    Args:
      batch: of the validation data, or of the training data.
      size: the number of its examples.
      validates: whether it is of the validation data: the loss is the validation step's, else that of `forward`.

    Returns:
      Whether the losses were compared.
    """
    task: Any = self._task
    metrics = task.build_metrics(training=False) if validates else []

    def loss_of(examples: Any, number: int) -> float:
      with step_random.step_key(self._key(number)):
        if validates:
          return float(task.validation_step(examples, self.model, metrics=metrics)[task.loss])
        return float(task.forward(examples, self.model, training=False)[0])

    owns_loss = bool(_users_classes(task))
    found = batch_checks.find(task, self.model, loss_of, batch, size, owns_loss, validates)
    self.found += found or ()
    return found is not None

  def _report_not_finite(self, step: str, batch: object, number: int) -> None:
    """Runs the step again, whose update was skipped, to find the origin of numbers that are not finite."""
    task, what = self._task, self._not_finite[0][0]

    def run():
      self._not_finite = []
      trains = step == 'train_step'
      values = {'model': self.model, 'metrics': task.build_metrics(training=trains)}
      with self._eager_step(number):
        logs = (
          task.train_step(batch, optimizer=self._optimizer, **values)
          if trains
          else task.validation_step(batch, **values)
        )
        self._see_loss(logs, getattr(task, step))
      return [tensor for _, tensor in self._not_finite]

    self.found.append(finite_checks.origin(run, f'{what} in {step}', tracebacks.of_function(getattr(task, step))))
    self._not_finite = self._not_finite or [(what, None)]

  def _check_metrics(self, metrics, step, logs):
    self.found += metrics.unused(self._task, step, logs)
    if metrics.float_labels is not None:
      data = 'task.train_data' if step == 'train_step' else 'task.validation_data'
      self._watch.add(step_watch.float_labels(data, metrics.float_labels), 'labels')

  def finish(self) -> list[findings.Finding]:
    """All findings, each once."""
    return list(dict.fromkeys([*self._watch.found, *self.found, *self._modes.find(self._gradients)]))

  def _key(self, step: int) -> step_random.StepKey:
    return step_random.StepKey(seed=self._params.runtime.seed, step=tf.constant(step, tf.int64))

  @contextlib.contextmanager
  def _eager_step(self, step: int) -> Iterator[None]:
    """Surrounds a step as the trainer does; keeps the gradients and the results of `forward`."""
    with contextlib.ExitStack() as stack:
      stack.enter_context(step_random.step_key(self._key(step)))
      stack.enter_context(observers.observed(self._see_update))
      if isinstance(self._task, base_task.Task):
        stack.enter_context(observers.MethodPatch(self._task, 'forward', self._noting_loss))
      yield

  def _see_update(self, optimizer, pairs):
    """Notes gradients. Returns whether they may be applied: not if they are not finite, as in a run."""
    del optimizer
    for gradient, variable in pairs:
      self._gradients[id(variable)] = self._gradients.get(id(variable), False) or gradient is not None
    values = [(f'the gradient of {v.name}', g.values if isinstance(g, tf.IndexedSlices) else g) for g, v in pairs]
    bad = [(name, value) for name, value in values if value is not None and not finite_checks.is_finite(value)]
    self._not_finite += bad
    return not bad and any(gradient is not None for gradient, _ in pairs)  # Keras refuses to apply nothing.

  def _noting_loss(self, forward):

    def noting(*args, **kwargs):
      returned = forward(*args, **kwargs)
      if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not tf.is_tensor(returned[0]):
        return returned
      self._see_loss({self._task.loss: returned[0]}, forward)
      return tf.reduce_mean(returned[0]), returned[1]  # So that the rest can be checked too.

    return noting

  def _see_loss(self, logs: object, function: object) -> None:
    loss: tf.Tensor = logs.get(self._task.loss) if isinstance(logs, Mapping) else None
    if tf.is_tensor(loss) and loss.shape.rank:
      self.found.append(
        findings.Finding(
          'error',
          tracebacks.of_function(function),
          f'the loss is not a scalar, its shape is {loss.shape.as_list()}',
          'return tf.reduce_mean(loss), the mean over the examples',
        )
      )
    if tf.is_tensor(loss) and not finite_checks.is_finite(loss):
      self._not_finite.insert(0, ('the loss', loss))

  def _check_update(self, changed: bool, logs: Any) -> None:
    """Reports weights that get no gradient, or a step that changes no weights. `logs` are the last step's."""
    place = tracebacks.of_function(self._task.train_step)
    weights = _trainable_variables(self.model)
    unused = [v for v in weights if not self._gradients.get(id(v), False)]
    if changed:
      if unused and self._gradients and _users_classes(self._task):  # Model Garden's own models have some.
        names = ', '.join(v.name for v in unused[:_MAX_NAMED])
        more = f' and {len(unused) - _MAX_NAMED} more' if len(unused) > _MAX_NAMED else ''
        self.found.append(
          findings.Finding(
            'warning',
            place,
            f'the gradient of {names}{more} is None: the loss does not depend on it',
            "let it take part in the loss, through TensorFlow's functions alone, or set trainable=False",
          )
        )
      return
    level = 'error'
    if not weights:
      why, remedy = 'the model has no trainable weights', 'set trainable=True if there is something to learn'
    elif not self._gradients:
      why, remedy = 'it hands no gradients to an optimizer', 'call optimizer.apply_gradients in train_step'
    elif not any(self._gradients.values()):
      why = 'all gradients are None'
      remedy = 'compute the loss from the outputs of the model, inside the tape, without .numpy() or rounding'
    elif self._learning_rate() == 0:
      why = f'the learning rate is 0 at step {self._params.trainer.train_steps // 2}'
      remedy = 'mend trainer.optimizer_config.learning_rate'
    elif isinstance(self._task, base_task.Task) and (why := self._task.why_no_update(logs)):
      level, remedy = 'warning', 'a run learns nothing until that changes'
    else:
      why = 'all gradients are 0 or too small'
      remedy = 'look for a loss that does not depend on the weights, and at trainer.optimizer_config'
    self.found.append(findings.Finding(level, place, f'a step does not change the weights: {why}', remedy))

  def _learning_rate(self) -> float | None:
    rate = getattr(self._optimizer, 'learning_rate', None)
    if callable(rate) and not isinstance(rate, tf.Variable):
      rate = rate(self._optimizer.iterations)
    return None if rate is None else float(tf.convert_to_tensor(rate))

  # State that Python keeps from one step to the next.

  def _owners(self) -> Iterator[tuple[str, object, dict[str, object]]]:
    """(name, object, attributes) of the task, of layers of the user's classes, and of the modules of these classes."""
    parts = self.model.submodules if isinstance(self.model, tf.Module) else ()
    layers = [part for part in parts if isinstance(part, tf_keras.layers.Layer)]
    modules = {}
    for name, owner in [('self', self._task), *((layer.name, layer) for layer in layers)]:
      classes = _users_classes(owner)
      if classes:
        yield name, owner, vars(owner)
      modules.update({cls.__module__: sys.modules.get(cls.__module__) for cls in classes})
    for name, module in modules.items():
      if isinstance(module, types.ModuleType):
        yield name, module, vars(module)

  def _containers(self) -> dict[int, tuple[str, str]]:
    return {
      id(value): (name, attribute)
      for name, _, attributes in self._owners()
      for attribute, value in attributes.items()
      if isinstance(value, (list, dict, set))
    }

  def _state(self) -> dict[tuple[str, str], object]:
    return {
      (name, attribute): _signature(value)
      for name, _, attributes in self._owners()
      for attribute, value in list(attributes.items())
      if not attribute.startswith('__')
    }

  def _compare(self, before: Mapping[tuple[str, str], object]) -> None:
    """Reports attributes that a step has changed."""
    for name, owner, attributes in self._owners() if before else ():
      for attribute, value in list(attributes.items()):
        old = before.get((name, attribute), _signature(value))
        if old == _signature(value) or (name == 'self' and attribute == 'forward'):
          continue
        what = f'{name}.{attribute} is changed by the step: a compiled step runs Python once, when it is traced'
        remedy = 'keep it in a tf.Variable, or log the value from forward; self.step counts steps'
        if isinstance(value, np.random.Generator):
          remedy = 'use tf.random.stateless_uniform or the like with self.make_seed()'
        self._watch.add(findings.Finding('warning', _assignment(owner, attribute), what, remedy), (name, attribute))


def _assignment(owner: object, attribute: str) -> str:
  """The places where an attribute is assigned outside of constructors and builders."""
  if isinstance(owner, types.ModuleType):
    numbers = [
      node.lineno
      for node in ast.walk(ast.parse(inspect.getsource(owner)))
      if isinstance(node, ast.Global) and attribute in node.names
    ]
    return tracebacks.at_line(owner.__file__ or '', min(numbers, default=1))
  classes = _users_classes(owner)
  for cls in classes:
    lines, first = inspect.getsourcelines(cls)
    for method in ast.walk(ast.parse(textwrap.dedent(''.join(lines)))):
      if isinstance(method, ast.FunctionDef) and not method.name.startswith(('__init__', 'build')):
        for node in ast.walk(method):
          if not (isinstance(node, ast.Attribute) and node.attr == attribute):
            continue
          if isinstance(node.value, ast.Name) and node.value.id == 'self':
            return tracebacks.at_line(_file_of(cls), first + node.lineno - 1, f'{cls.__name__}.{method.name}')
  return tracebacks.at_line(_file_of(classes[0]), inspect.getsourcelines(classes[0])[1], classes[0].__name__)


def _signature(value: object) -> object:
  """A value that differs if an attribute's value does; None for attributes that are not checked."""
  if isinstance(value, (bool, int, float, str)):
    return repr(value)
  if isinstance(value, (list, dict, set)):
    return len(value), [_signature(item) for item in value] if len(value) < 100 else None
  if isinstance(value, np.random.Generator):
    return repr(value.bit_generator.state)
  if isinstance(value, np.ndarray):
    return hash(value.tobytes()) if value.nbytes < 2**20 and value.dtype != object else None
  return id(value) if isinstance(value, tf.Tensor) else None


def _file_of(cls: type) -> str:
  return package_imports.file_of_module(sys.modules.get(cls.__module__)) or '<unknown>'


def _users_classes(owner: object) -> list[type]:
  return [cls for cls in type(owner).__mro__ if tracebacks.is_users(_file_of(cls))]


def _trainable_variables(model: object) -> list[tf.Variable]:
  return list(getattr(model, 'trainable_variables', ()))  # A loaded SavedModel is no tf.Module.


def _built(model: tf_keras.Model) -> bool:
  return isinstance(model, tf_keras.layers.Layer) and model.built and bool(_trainable_variables(model))
