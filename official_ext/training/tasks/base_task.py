"""The task, which a user writes: data, model, loss. Registers experiments and tasks in Model Garden's registries."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from official.core import base_task
from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf
import tf_keras

from official_ext.base import model_garden_internals
from official_ext.base import protocols
from official_ext.base import registry
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.base.run_folder import run_files
from official_ext.data import config_fields
from official_ext.data import image_preprocessing
from official_ext.training.checkpoints import warm_start
from official_ext.training.step import step_random

T = TypeVar('T')


def register_experiment(name: str) -> Callable[[T], T]:
  """Registers a function without arguments that returns an ExperimentConfig, as `--experiment=name`.

      @ext.register_experiment('rings')
      def rings() -> ext.ExperimentConfig:

  Args:
    name: lower-case words joined by `_`; `/` groups several.

  Raises:
    UserError: another function is registered by this name. One of the same name and module is replaced, so that a cell
      of a notebook may run again.

  Example:

    >>> @ext.register_experiment('toy_of_a_docstring')
    ... def toy():
    ...   return ext.ExperimentConfig(task=ext.TaskConfig(), trainer=ext.TrainerConfig({'train_steps': 10}))
  """
  *groups, own = name.split('/')

  def values() -> Any:
    found: Any = model_garden_internals.registered_configs()
    for group in groups:
      found = found[group] if isinstance(found, dict) else found
    return found

  return _registering(exp_factory.register_config_factory(name), f'the experiment {name}', values, own)


def register_task(config_class: type) -> Callable[[T], T]:
  """Registers the task that is made from a configuration of this class.

      @ext.register_task(RingsConfig)
      class Rings(ext.Task):

  Args:
    config_class: a TaskConfig, which no other task has.

  Raises:
    UserError: another task is registered for it. One of the same name and module is replaced.

  Example:

    >>> @dataclasses.dataclass
    ... class ToyConfig(ext.TaskConfig):
    ...   pass
    >>> @ext.register_task(ToyConfig)
    ... class ToyTask(ext.Task):
    ...   def build_model(self):
    ...     return tf_keras.Sequential([tf_keras.layers.Dense(1)])
  """
  register = task_factory.register_task_cls(config_class)
  what = f'the task of {config_class.__qualname__}'
  return _registering(register, what, model_garden_internals.registered_tasks, config_class)


def _registering(register: Callable[[Any], Any], what: str, values: Callable[[], Any], key: Any) -> Callable[[T], T]:
  def decorate(registered: T) -> T:
    try:
      return register(registered)
    except KeyError as error:  # Model Garden's registry.
      known = values()
      if not isinstance(known, dict) or key not in known:  # A group has the name of an experiment.
        raise registry.taken(what, known, registered) from error
      if not registry.is_same(known[key], registered):
        raise registry.taken(what, known[key], registered) from error
      known[key] = registered
      return registered

  return decorate


class Task(base_task.Task):
  """A single-replica view of training: `build_model`, `build_inputs` and `forward` make a task.

  `train_step` and `validation_step` are derived from `forward`; override them to own more of the step. `train_step`
  hands its gradients to `optimizer.apply_gradients`, and the trainer takes them from there:
  accumulation, reduction, the test for finite values and clipping need no code in a task.

  Attributes:
    weights_folder: The folder of the checkpoint whose weights the model will have, known before it is built: in a
      resume, an evaluation, `ext.load`. '' for a new run.
    evaluates: Whether the run evaluates, known before its input is built: only then are examples held out for it.

  Example:

    >>> class Regression(ext.Task):
    ...   def build_model(self):
    ...     return tf_keras.Sequential([tf_keras.layers.Dense(1)])
    ...
    ...   def build_inputs(self, params, input_context=None):
    ...     source = ext.ArraySource({'x': np.ones([8, 3]), 'y': np.ones([8, 1])})
    ...     return ext.build_dataset(source, params, input_context)
    ...
    ...   def forward(self, inputs, model, training):
    ...     error = model(inputs['x'], training=training) - inputs['y']
    ...     return tf.reduce_mean(error**2), {}
    >>> task = Regression(ext.TaskConfig())
    >>> loss, _ = task.forward({'x': tf.zeros([2, 3]), 'y': tf.ones([2, 1])}, task.build_model(), training=False)
    >>> float(loss)
    1.0
  """

  weights_folder: str = ''
  evaluates: bool = True

  @property
  def class_names(self) -> Sequence[str]:
    """The names of the classes, in the order of their numbers, for images; () if they have none."""
    return ()

  @property
  def output_names(self) -> Sequence[str]:
    """The names of the model's outputs in exports, in their order; (): of the layers, or `output`.

    The keys of a model that returns a dictionary are its names.
    """
    return ()

  @property
  def mixes_examples(self) -> bool:
    """Whether the loss of an example depends on the others of its batch, as in contrastive learning. If it does not,
    `official-ext check` reports a loss of a batch that is not a weighted mean of its examples' losses. A class states
    it by `mixes_examples = True`.
    """
    return False

  @property
  def trainer_cls(self) -> type | None:
    """A subclass of `ext.Trainer` that trains the task, if one of its override points is needed, such as
    `next_train_inputs`. None: the library's own. A subclass of Model Garden's trainer is refused.
    """
    return None

  @property
  def config(self) -> Any:
    """The task's configuration, `params.task`."""
    return self.task_config

  @property
  def step(self) -> tf.Tensor:
    """The number of updates before this step, or before this evaluation: int64 scalar. Zero outside of both."""
    key = step_random.current_key()
    return tf.constant(0, tf.int64) if key is None else tf.cast(key.step, tf.int64)

  def make_seed(self, salt: str | None = None) -> tf.Tensor:
    """A seed for stateless random ops, a function of (runtime.seed, step, replica): int64 of shape [2].

    In an evaluation, it is a function of (runtime.seed, number of the batch, replica), the same in every evaluation.
    """
    return step_random.make_seed(salt)

  def forward(self, inputs: Any, model: tf_keras.Model, training: bool) -> tuple[tf.Tensor, Mapping[str, object]]:
    """Computes the loss of one replica's batch.

    Args:
      inputs: one element of the input pipeline, this replica's share of the batch.
      model: the model of `build_model`.
      training: whether the pass is for an update.

    Returns:
      (loss, logs). `loss` is a scalar, the mean over the examples of `inputs`, without `model.losses` (regularizers),
      which the steps add. `logs` maps names to values: a scalar,
      the mean over the examples, is logged as its mean over all examples; a tuple under the name of one of
      `build_metrics`'s metrics is handed to that metric's `update_state`. Each name has one value: a scalar under the
      name of a metric, or of a value that the loop logs, is an error. Integers and float64 are kept as float64 in the
      means. In evaluation, a tensor of shape [images,
      height, width, channels] is pictures, of which TensorBoard shows those of the first batch.
    """
    raise NotImplementedError(f'{type(self).__name__} must implement forward, or train_step and validation_step.')

  def micro_batch_weight(self, inputs: Any) -> tf.Tensor | None:
    """The weight of a replica's micro-batch in mean losses: of an update, and `validation_loss` of an evaluation.

    For a mean over tokens: `forward` returns the mean over the tokens of its micro-batch, and this their number.
    Metrics and logs are not weighted by it. It may be called for a micro-batch without examples.

    Args:
      inputs: of `forward`.

    Returns:
      A scalar, at least 0; None for the number of examples.
    """
    del inputs
    return None

  def activation_bytes(self, model: tf_keras.Model, num_replicas: int) -> int | None:
    """An estimate of the memory of a micro-batch's activations on one replica, in bytes; None if there is none.

    Args:
      model: the model of `build_model`.
      num_replicas: among which the batch is divided.
    """
    del model, num_replicas
    return None

  def least_weights(self) -> tuple[int, int] | None:
    """What is known of the weights before the model is made: a training without room for them is refused.

    Returns:
      (bytes of all weights, numbers in those that are trained), both at least; None if nothing is known.
    """
    return None

  def initialize(self, model: tf_keras.Model) -> None:
    """Starts a new run from the weights in `task.init_checkpoint`, if that is set: see warm_start.py.

    Args:
      model: the model of `build_model`.

    Raises:
      UserError: there is no such checkpoint, or it does not fit.
    """
    if self.task_config.init_checkpoint:
      may_miss = config_fields.of_task(self.task_config).init_checkpoint_may_miss
      warm_start.load_weights(model, self.task_config.init_checkpoint, may_miss)

  def serving_function(self, model: tf_keras.Model) -> Any | None:
    """The function that an exported model computes: see serving.py.

    Args:
      model: the model of `build_model`, trained.

    Returns:
      A `tf.function` with an `input_signature`, which returns a dictionary of tensors, or a dictionary of such
      functions by the names of their signatures ('serving_default' is called by a server). None: the call of the
      model, on the inputs that it was built for.
    """
    del model
    return None

  def image_preprocessing(self) -> image_preprocessing.ImagePreprocessing | None:
    """The way from an image file to the model's input, for a task on images: `build_inputs` and exports call it.

    Returns:
      None: the task states none. An export with encoded images then assumes one, and verifies it if it can.
    """
    return None

  @property
  def evaluation_end_names(self) -> Sequence[str]:
    """The names of the metrics of `evaluation_end`."""
    return ()

  def evaluation_end(self, model: tf_keras.Model) -> Mapping[str, Any]:
    """Further metrics, computed in Python once after the last batch of an evaluation: numbers by name.

    Args:
      model: the model of `build_model`, with the weights that were evaluated.
    """
    del model
    return {}

  def num_examples(self, params: Any) -> int | None:
    """The number of examples in one epoch of a data configuration; None if the source does not know it.

    Args:
      params: `task.train_data` or `task.validation_data`.
    """
    del params
    return None

  def build_actions(self, trainer: protocols.Trainer) -> Sequence[Callable[[Mapping[str, Any]], None]]:
    """Makes the actions to take besides training, and says when: see triggers.py.

    Args:
      trainer: with `model`, `global_step`, `optimizer`, ...; built, but not restored yet.

    Returns:
      Triggers. Any other function of the logs is called after every training loop.
    """
    del trainer
    return ()

  def keep_files(self, model_dir: str) -> None:
    """Writes the data that is needed to resume from this run and is not in the configuration: when training starts, on
    the chief, next to params.yaml. `weights_folder` leads to it.

    Args:
      model_dir: the run's folder.

    Raises:
      StorageError: it cannot be written.
    """
    del model_dir

  def example_lines(self) -> Sequence[str]:
    """Lines about the first training example, for the log of a start; () for none."""
    return ()

  def code_files(self) -> Mapping[str, Any]:
    """Further code and files that decide the result of a step, beside the modules of the task: see code_identity.py.

    A run compares them over its workers, and reports on resume which of them have changed.

    Returns:
      By name: the path of a file, bytes, or a function, class or module in Python.
    """
    return {}

  def check_result(self, model: tf_keras.Model, folder: str) -> Sequence[str]:
    """Saves the result of a finished run, loads it again, and compares: for `official-ext check`.

    Args:
      model: the model of `build_model`, after a step.
      folder: where to save it. It is removed afterwards.

    Returns:
      A line for each thing that was saved.

    Raises:
      UserError: it does not load, or loads to something else.
    """
    del model, folder
    return ()

  def why_no_update(self, logs: Mapping[str, object]) -> str:
    """Says why a step is right to leave the weights unchanged, which `official-ext check` takes for a mistake.

    Args:
      logs: of `train_step`.

    Returns:
      The reason, in words; '' if there is none.
    """
    del logs
    return ''

  @tf_internals.autograph_unconverted
  def train_step(self, inputs, model, optimizer, metrics=None):
    """Forward, backward and `optimizer.apply_gradients`: see base class."""
    with tf.GradientTape() as tape:
      loss, logs = self._loss_and_logs(inputs, model, training=True)
      # The trainer sums the replicas' gradients.
      scaled_loss = loss / tf.distribute.get_strategy().num_replicas_in_sync
      scales_loss = isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
      if scales_loss:
        scaled_loss = optimizer.get_scaled_loss(scaled_loss)
    variables = model.trainable_variables
    gradients = tape.gradient(scaled_loss, variables)
    if scales_loss:
      gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(list(zip(gradients, variables)))
    return {**self._update_metrics(logs, metrics), self.loss: loss}

  @tf_internals.autograph_unconverted
  def validation_step(self, inputs, model, metrics=None):
    """Forward pass without an update: see base class."""
    loss, logs = self._loss_and_logs(inputs, model, training=False)
    return {**self._update_metrics(logs, metrics), self.loss: loss}

  @tf_internals.autograph_unconverted
  def _loss_and_logs(self, inputs, model, training):
    """Calls `forward`, and adds the model's own losses (regularisers), as in Model Garden's train_step."""
    returned = tf_internals.autograph_called(self.forward)(inputs, model, training)
    if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not isinstance(returned[1], Mapping):
      raise ValueError(
        f'{self._forward_place()}.forward must return (loss, logs), logs being a dictionary; it returned {returned!r}.'
      )
    loss, logs = returned
    if tf.convert_to_tensor(loss).shape.rank not in (0, None):
      raise ValueError(
        f'{self._forward_place()}.forward must return a scalar loss, the mean over the examples; it returned {loss!r}.'
      )
    model_losses = getattr(model, 'losses', None)
    if model_losses:
      loss += tf.add_n([tf.cast(model_loss, loss.dtype) for model_loss in model_losses])
    return loss, logs

  def _forward_place(self):
    """`file:line: class`, for errors that must be corrected in `forward`."""
    return f'{tracebacks.of_function(self.forward, with_name=False)}: {type(self).__name__}'

  @tf_internals.autograph_unconverted
  def _update_metrics(self, logs, metrics):
    """Hands tuples in `logs` to the metrics with their names; returns the rest, whose names nothing else has."""
    by_name = {metric.name: metric for metric in metrics or ()}
    rest = {}
    for name, value in logs.items():
      if isinstance(value, tuple):
        if name not in by_name:
          raise ValueError(
            f'{self._forward_place()}.forward logs the tuple {name!r}, and build_metrics has no metric of that name: '
            f'it has {sorted(by_name)}.'
          )
        by_name[name].update_state(*value)
      elif name in by_name or name in run_files.LOOP_LOGS:
        owner = 'a metric of build_metrics, which takes a tuple' if name in by_name else 'a value that the loop logs'
        raise ValueError(
          f'{self._forward_place()}.forward logs {name!r}, which is also the name of {owner}; rename one of them.'
        )
      else:
        rest[name] = value
    return rest
