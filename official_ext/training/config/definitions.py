"""Defines the configuration dataclasses: Model Garden's, and the fields that this library adds.

First the parts of the training loop, then task, data, runtime, trainer and experiment. An experiment is registered with
these classes or with Model Garden's: `upgrade` turns the latter into the former, so that every field exists for every
experiment. `UNREAD_FIELDS` states which fields nothing reads, and why; `SECRET_FIELDS`, whose values no message may
repeat. checks.py lists the other conditions that a class may state.
"""

from collections.abc import Mapping
import copy
import dataclasses
import functools
from typing import Any, ClassVar, TypeVar

from official.modeling.hyperparams import params_dict

from official_ext.base import base_config
from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import model_garden_configs
from official_ext.base import model_garden_internals
from official_ext.base import safe_text
from official_ext.base.run_folder import metric_direction
from official_ext.data import bad_examples
from official_ext.data.service import client
from official_ext.training.config import mesh_config
from official_ext.training.optimization import configs
from official_ext.training.writers import notifications as notifications_lib
from official_ext.training.writers import tensorboard
from official_ext.training.writers import trackers


@dataclasses.dataclass
class NonfiniteConfig(base_config.Config):
  """The reaction to steps whose loss or gradients are not finite; they leave the weights unchanged.

  Attributes:
    max_skips: How many such steps are allowed since the start or the last rollback.
    then: The reaction to one more: 'stop' ends the run, 'rollback' goes back to the newest checkpoint from before the
      trouble, and continues from there with the batches that follow it.
    max_rollbacks: How many rollbacks are allowed; one more ends the run.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'then': ('stop', 'rollback')}
  RANGES: ClassVar[Mapping[str, str]] = dict.fromkeys(('max_skips', 'max_rollbacks'), '[0, inf)')

  max_skips: int = 10
  then: str = 'stop'
  max_rollbacks: int = 3


@dataclasses.dataclass
class LossSpikeConfig(base_config.Config):
  """When a loss is so high that its step is treated as one that is not finite: see `nonfinite`.

  Attributes:
    factor: A loss above `factor` times the median of the losses before it is a spike. 0: no loss is one.
    window: The number of losses in that median, 128 at most. No loss is a spike before that many steps.
  """

  MAX_WINDOW: ClassVar[int] = 128

  factor: float = 0.0
  window: int = 100

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.factor and not self.factor > 1:
      raise errors.UserError(f'{path}.factor: expected more than 1, or 0 for no rule, got {self.factor}')
    if not 1 <= self.window <= self.MAX_WINDOW:
      raise errors.UserError(f'{path}.window: expected 1 to {self.MAX_WINDOW}, got {self.window}')


@dataclasses.dataclass
class _WatchedMetric(base_config.Config):
  """A metric of the evaluation and its better direction."""

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'mode': ('auto', 'max', 'min')}

  metric: str = ''
  mode: str = 'auto'

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.mode in ('auto', 'max', 'min'):
      self.check_direction(path)

  def check_direction(self, path: str) -> None:
    """Refuses a mode that contradicts the metric's name, and 'auto' if the name says nothing."""
    if self.metric:
      try:
        metric_direction.check_agrees(self.metric, metric_direction.mode_of(self.metric, self.mode))
      except ValueError as error:
        raise errors.UserError(f'{path}.mode: {error}') from error


@dataclasses.dataclass
class EarlyStoppingConfig(_WatchedMetric):
  """When training ends before `train_steps`: a metric has stopped improving.

  Attributes:
    metric: A metric of the evaluation; `|` separates the levels of nested logs. Empty: training does not stop early.
    mode: 'max' or 'min': the better direction. 'auto': as the metric's name says: 'min' for a loss or an error, 'max'
      for an accuracy and similar. A mode that contradicts the name is refused.
    patience: The number of evaluations in a row without an improvement that ends training.
    min_delta: The least change that counts as an improvement.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'patience': '[1, inf)', 'min_delta': '[0, inf)'}

  patience: int = 5
  min_delta: float = 0.0


@dataclasses.dataclass
class ReduceLROnPlateauConfig(_WatchedMetric):
  """When the learning rate is lowered: a metric has stopped improving. As tf_keras' callback of that name.

  Attributes:
    metric: A metric of the evaluation; `|` separates the levels of nested logs. Empty: the learning rate follows its
      schedule alone.
    mode: 'max' or 'min': the better direction. 'auto': as the metric's name says: 'min' for a loss or an error, 'max'
      for an accuracy and similar. A mode that contradicts the name is refused.
    factor: The factor of the learning rate, constant or of a schedule.
    patience: The number of evaluations in a row without an improvement after which that is done.
    min_delta: The least change that counts as an improvement.
    cooldown: The number of evaluations after a reduction that do not count.
    min_lr: The learning rate below which it is not lowered.
  """

  RANGES: ClassVar[Mapping[str, str]] = {
    'factor': '(0, 1)',
    **dict.fromkeys(('patience', 'cooldown', 'min_delta', 'min_lr'), '[0, inf)'),
  }

  factor: float = 0.1
  patience: int = 10
  min_delta: float = 1e-4
  cooldown: int = 0
  min_lr: float = 0.0


@dataclasses.dataclass
class InspectConfig(base_config.Config):
  """The statistics of the inside of a step in TensorBoard, under `inspect/` of the training curves.

  Attributes:
    every: The number of steps between two inspections. 0: none. If a program runs several steps, the first step of a
      program that contains a multiple of this number is inspected.
    activations: Whether to show mean, standard deviation, fraction of zeros and maximum of the outputs of layers.
    histograms: Whether to show histograms of weights, gradients and activations.
    layers: Patterns, such as 'encoder/*', of the names of the layers to show; none for all.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'every': '[0, inf)'}

  every: int = 0
  activations: bool = True
  histograms: bool = False
  layers: tuple[str, ...] = ()

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `checks.check`."""
    if self.every and (mode is None or 'train' in mode) and 'tensorboard' not in params.trainer.writers:
      raise errors.UserError(
        f'{path}.every: its values go to TensorBoard alone; add tensorboard to trainer.writers, or set it to 0'
      )


OptimizationConfig = configs.OptimizationConfig

ConfigT = TypeVar('ConfigT', bound=base_config.Config)

_STEP_INDEXED = 'the input is indexed by step and does not read it'
_DATA_SERVICE = 'each pipeline asks the tf.data service for its own batches'


@dataclasses.dataclass
class TaskConfig(model_garden_configs.TaskConfig):
  """Data, model and loss.

  Attributes:
    init_checkpoint: A checkpoint, or a folder with checkpoints, from whose weights a new run starts.
    init_checkpoint_may_miss: Patterns, such as '*logits*', of the model's variables that may be missing in
      `init_checkpoint`, or have another shape there: they keep their initial values.

  Example:

    >>> @dataclasses.dataclass
    ... class DigitsConfig(ext.TaskConfig):
    ...   hidden_size: int = 64
    >>> DigitsConfig({'hidden_size': 32}).hidden_size
    32
  """

  init_checkpoint_may_miss: tuple[str, ...] = ()


@dataclasses.dataclass
class DataConfig(model_garden_configs.DataConfig):
  """Data whose batch at step s is a pure function of (seed, s).

  A subclass that builds an ordinary tf.data pipeline from Model Garden's fields sets `UNREAD_FIELDS = {}`.

  Attributes:
    drop_remainder: For evaluation only: whether to leave out the last batch if it has fewer than
      `global_batch_size` examples. None or false: every example is seen exactly once. Training batches are always full,
      they run on into the next epoch.
    collator: The registered name of the function that turns a list of examples into a batch.
    num_parallel_calls: The number of batches that are prepared at the same time.
    on_bad_example: The reaction to an example that cannot be read or put into a batch. 'error' ends the run and names
      it. 'skip' counts it and, in training, takes the next good one instead; an evaluation leaves it out.

  Example:

    >>> data = ext.DataConfig({'input_path': 'data/train-*', 'global_batch_size': 32, 'is_training': True})
    >>> data.on_bad_example
    'error'
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = {
    'shuffle_buffer_size': 'training examples are drawn from a permutation of the whole epoch, without a buffer',
    'cache': _STEP_INDEXED,
    'cycle_length': _STEP_INDEXED,
    'block_length': _STEP_INDEXED,
    'sharding': 'every replica takes its slice of the global batch',
    'ram_budget': 'set num_parallel_calls and prefetch_buffer_size instead',
    'tf_data_service_job_name': _DATA_SERVICE,
    'enable_shared_tf_data_service_between_parallel_trainers': _DATA_SERVICE,
    'apply_tf_data_service_before_batching': _DATA_SERVICE,
    'trainer_id': _DATA_SERVICE,
    'tfds_as_supervised': 'examples are dictionaries of features',
    'tfds_skip_decoding_feature': _STEP_INDEXED,
    'autotune_algorithm': 'set num_parallel_calls instead',
  }

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'on_bad_example': bad_examples.ACTIONS}
  RANGES: ClassVar[Mapping[str, str]] = {'num_parallel_calls': '[1, inf)'}

  drop_remainder: bool | None = None
  collator: str = 'stack'
  num_parallel_calls: int = 2
  on_bad_example: str = 'error'

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if not self.enable_tf_data_service:
      return
    if not self.tf_data_service_address:
      raise errors.UserError(
        f'{path}.enable_tf_data_service: needs an address; give --tf_data_service=grpc://HOST:PORT'
      )
    client.check_address(self.tf_data_service_address, f'{path}.tf_data_service_address')


_IN_MEMORY = 'the task brings its examples itself'


@dataclasses.dataclass
class InMemoryDataConfig(DataConfig):
  """Examples that the task makes or loads by itself: there is no file or TFDS builder to be named.

  Example:

    >>> data = ext.InMemoryDataConfig({'global_batch_size': 32, 'is_training': True})
    >>> data.global_batch_size
    32
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = {
    **DataConfig.UNREAD_FIELDS,
    **dict.fromkeys(('input_path', 'tfds_name', 'tfds_split', 'tfds_data_dir'), _IN_MEMORY),
  }


@dataclasses.dataclass
class RuntimeConfig(model_garden_configs.RuntimeConfig):
  """Devices, precision, compilation and seed.

  Attributes:
    distribution_strategy: 'auto' takes TPU, several GPUs, one GPU, CPU, the first that exists. Or one of
      'tpu', 'mirrored', 'one_device', 'multi_worker_mirrored', 'parameter_server', 'off'. Under 'parameter_server'
      the workers' inputs are not distinguished: with input that is indexed by step all of them take the same batches.
    enable_xla: true, false, or 'auto': XLA on GPU and TPU, on one CPU by a rule over the traced step
      (where it multiplies bfloat16 itself, the products of a model that is not small stay outside: in bfloat16, and in
      float32 this library's decoders' products), not on several replicas on CPUs. If the shapes of batches vary, for
      the first 16 shapes on GPUs, and not on CPUs.
    num_gpus: The number of GPUs to use. 0 under distribution_strategy 'auto': all there are.
    mixed_precision_dtype: The dtype in which layers compute; weights stay float32. None is float32. auto is bfloat16 on
      TPUs and on GPUs of compute capability 8.0 or higher, else float32: a run prints and records it, and keeps it when
      it resumes on other devices.
    num_virtual_cpus: The number of logical devices to cut the CPU into, 0 for one. For tests of distributed runs.
    mesh: The axes of a mesh of CPUs, for parameters, activations and batches that are split: docs/how_to/mesh.md. GPUs
      are refused.
    seed: The seed of weights, data order, augmentation and dropout. It fills `task.train_data.seed` if that is
      unset.
    deterministic: Whether to turn on TensorFlow's op determinism, for the same bits on GPU, and of random augmentation
      by tf.data's parallel maps, which one thread then draws.
    worker_start_timeout_seconds: How long the workers of a run wait for each other when they start.
    worker_timeout_seconds: How long a worker may give no sign of life before the others end with an error. One that
      dies in the middle of a step is noticed at once.
    hang_seconds: How long a run may hang, without a step, a batch of an evaluation or the end of a save, before
      it ends with the stacks of all threads and exit status 75. Ten times as long until the first step and the first
      batch of an evaluation are done: they are compiled. 0: for ever.
    tpu_enable_xla_dynamic_padder: Whether XLA on TPU pads dynamic shapes. None: XLA's default.

  Example:

    >>> ext.RuntimeConfig({'mixed_precision_dtype': 'bfloat16', 'seed': 1}).seed
    1
  """

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = {
    'worker_hosts': 'set the environment variable TF_CONFIG instead',
    'task_index': 'set the environment variable TF_CONFIG instead',
    'run_eagerly': 'set trainer.train_tf_function=false and trainer.train_tf_while_loop=false instead',
    'gpu_thread_mode': 'set the environment variable TF_GPU_THREAD_MODE instead',
    'per_gpu_thread_count': 'set the environment variable TF_GPU_THREAD_COUNT instead',
    'dataset_num_private_threads': 'set the options of the dataset in the task instead',
    'batchnorm_spatial_persistent': 'set the environment variable TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT instead',
    'use_tpu_mp_strategy': 'model parallelism on TPU is not available',
    'num_cores_per_replica': 'model parallelism on TPU is not available',
    'default_shard_dim': 'model parallelism on TPU is not available',
  }

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {
    'distribution_strategy': (
      'auto',
      'tpu',
      'mirrored',
      'one_device',
      'multi_worker_mirrored',
      'parameter_server',
      'off',
    ),
    'mixed_precision_dtype': (None, 'auto', 'float32', 'float16', 'bfloat16'),
    'enable_xla': (True, False, 'auto'),
  }
  RANGES: ClassVar[Mapping[str, str]] = {
    'hang_seconds': '[0, inf)',
    **dict.fromkeys(('num_packs', 'worker_start_timeout_seconds', 'worker_timeout_seconds'), '[1, inf)'),
    'num_gpus': '[0, inf)',
    'seed': '[0, 4294967295]',  # NumPy's generator takes 32 bits.
    'num_virtual_cpus': '[0, 1000]',
  }

  distribution_strategy: str = 'auto'
  enable_xla: bool | str = 'auto'
  num_virtual_cpus: int = 0
  mesh: mesh_config.MeshConfig = dataclasses.field(default_factory=mesh_config.MeshConfig)
  seed: int = 0
  deterministic: bool = False
  worker_start_timeout_seconds: int = 600
  worker_timeout_seconds: int = 30
  hang_seconds: float = 0.0

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    scale = self.loss_scale
    if not (scale in (None, 'dynamic') or (isinstance(scale, float) and scale > 0)):
      raise errors.UserError(f"{path}.loss_scale: expected null, 'dynamic' or a number above 0, got {scale!r}")


@dataclasses.dataclass
class TrainerConfig(model_garden_configs.TrainerConfig):
  """The training loop. One step is one update of the weights.

  Attributes:
    optimizer_config: Optimizer, schedule of the learning rate, warm-up, moving average, parameter groups.
    steps_per_execution: The number of steps in one compiled program, on one replica. 0: chosen by the library, up to
      64, and 1 if the trainer overrides `next_train_inputs`.
    gradient_accumulation_steps: The number of batches of `global_batch_size` whose mean gradient makes one update.
    train_epochs: The length of training in epochs of the training data, instead of `train_steps`. 0: unset.
    validation_interval_epochs: Epochs between evaluations, instead of `validation_interval`. 0: unset.
    checkpoint_interval_epochs: Epochs between checkpoints, instead of `checkpoint_interval`. 0: unset.
    summary_interval_epochs: Epochs between summaries, instead of `summary_interval`. 0: unset.
    async_checkpointing: Whether to write checkpoints during training.
    keep_every: Checkpoints at multiples of this step are kept in addition to the `max_to_keep` newest. 0: none.
    best_checkpoint_metric_comp: Which values of `best_checkpoint_eval_metric` are better, 'higher' or 'lower'. 'auto':
      as the metric's name says, and 'higher', with a warning, if it says nothing. A direction that contradicts the name
      is refused.
    best_checkpoints_to_keep: The number of best checkpoints that are kept in `best_checkpoint_export_subdir`.
    nonfinite: The reaction to losses and gradients that are not finite.
    loss_spike: Which losses are too high to learn from.
    inspect: The statistics of gradients, weights, updates and activations.
    sharding: The tensors split over the axes of `runtime.mesh`.
    progress_bar: Whether to show progress: lines, and on a terminal a bar below them.
    early_stopping: When training ends before `train_steps`.
    reduce_lr_on_plateau: When the learning rate is lowered.
    writers: Where metrics go besides events.jsonl and the terminal: any of 'tensorboard', 'csv', 'mlflow', 'wandb', and
      the writers of `registry.register`.
    summary_names: The names of TensorBoard's curves: 'official_ext', or 'model_garden' for the names of Model Garden's
      own trainer, such as `training_loss`.
    mlflow: Options of the writer 'mlflow'.
    wandb: Options of the writer 'wandb'.
    notifications: Messages to people about the start and the end of a run.
    loss_upper_bound: The training loss above which `recovery_max_trials` counts a blow-up.
    recovery_begin_steps: The step from which `loss_upper_bound` holds.
    recovery_max_trials: The number of rollbacks after a blow-up, to the last checkpoint and on with the batches that
      follow. 0: a blow-up ends the run. -1: there is no watch.

  Example:

    >>> config = ext.TrainerConfig({'train_steps': 1000, 'nonfinite': {'max_skips': 3}})
    >>> config.train_steps, config.nonfinite.max_skips
    (1000, 3)
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {
    'best_checkpoint_metric_comp': ('auto', 'higher', 'lower'),
    'summary_names': tensorboard.SUMMARY_NAMES,
  }
  RANGES: ClassVar[Mapping[str, str]] = {
    **dict.fromkeys(
      (
        'steps_per_loop',
        'summary_interval',
        'checkpoint_interval',
        'max_to_keep',
        'gradient_accumulation_steps',
        'best_checkpoints_to_keep',
      ),
      '[1, inf)',
    ),
    **dict.fromkeys(
      (
        'steps_per_execution',
        'train_steps',
        'train_epochs',
        'validation_interval',
        'keep_every',
        'recovery_begin_steps',
        'continuous_eval_timeout',
        'validation_interval_epochs',
        'checkpoint_interval_epochs',
        'summary_interval_epochs',
      ),
      '[0, inf)',
    ),
    'recovery_max_trials': '[-1, inf)',
    'loss_upper_bound': '(-inf, inf]',
  }

  optimizer_config: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
  steps_per_execution: int = 0
  gradient_accumulation_steps: int = 1
  train_epochs: float = 0.0
  validation_interval_epochs: float = 0.0
  checkpoint_interval_epochs: float = 0.0
  summary_interval_epochs: float = 0.0
  async_checkpointing: bool = True
  keep_every: int = 0
  best_checkpoint_metric_comp: str = 'auto'
  best_checkpoints_to_keep: int = 1
  nonfinite: NonfiniteConfig = dataclasses.field(default_factory=NonfiniteConfig)
  loss_spike: LossSpikeConfig = dataclasses.field(default_factory=LossSpikeConfig)
  inspect: InspectConfig = dataclasses.field(default_factory=InspectConfig)
  sharding: mesh_config.ShardingConfig = dataclasses.field(default_factory=mesh_config.ShardingConfig)
  progress_bar: bool = True
  early_stopping: EarlyStoppingConfig = dataclasses.field(default_factory=EarlyStoppingConfig)
  reduce_lr_on_plateau: ReduceLROnPlateauConfig = dataclasses.field(default_factory=ReduceLROnPlateauConfig)
  writers: tuple[str, ...] = ('tensorboard',)
  summary_names: str = 'official_ext'
  mlflow: trackers.MlflowConfig = dataclasses.field(default_factory=trackers.MlflowConfig)
  wandb: trackers.WandbConfig = dataclasses.field(default_factory=trackers.WandbConfig)
  notifications: notifications_lib.NotificationsConfig = dataclasses.field(
    default_factory=notifications_lib.NotificationsConfig
  )

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.validation_steps == 0 or self.validation_steps < -1:
      raise errors.UserError(
        f'{path}.validation_steps: expected a number above 0, or -1 for all, got {self.validation_steps}'
      )
    if self.train_steps and self.train_epochs:
      raise errors.UserError(
        f'{path}.train_epochs: set either {path}.train_steps ({self.train_steps}) or {path}.train_epochs '
        f'({self.train_epochs}), not both'
      )
    subdir, metric = 'best_checkpoint_export_subdir', 'best_checkpoint_eval_metric'
    for given, needed in ((subdir, metric), (metric, subdir)):
      if getattr(self, given) and not getattr(self, needed):
        raise errors.UserError(f'{path}.{needed}: must be set too, as {path}.{given} is')
    self.check_direction(path)

  def check_direction(self, path: str) -> None:
    """Refuses a direction of the best checkpoint's metric that contradicts the metric's name."""
    given = self.best_checkpoint_metric_comp
    if self.best_checkpoint_eval_metric and given in metric_direction.COMPARISONS:
      try:
        metric_direction.check_agrees(self.best_checkpoint_eval_metric, metric_direction.COMPARISONS[given], given)
      except ValueError as error:
        raise errors.UserError(f'{path}.best_checkpoint_metric_comp: {error}') from error


@dataclasses.dataclass
class ExperimentConfig(model_garden_configs.ExperimentConfig):
  """Everything that one run is made from.

  Attributes:
    task: Data, model and loss.
    trainer: The loop: length, intervals, optimizer, checkpoints.
    runtime: Devices, precision, compilation, seed.

  Example:

    >>> params = ext.ExperimentConfig(task=ext.TaskConfig(), trainer=ext.TrainerConfig({'train_steps': 100}))
    >>> params.override({'runtime': {'seed': 3}})
    >>> params.runtime.seed, params.trainer.train_steps
    (3, 100)
  """

  task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
  trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
  runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)

  def lock(self):
    """Makes this configuration immutable at every depth: see `lock`."""
    lock(self)

  def masked_yaml(self) -> str:
    """The text of params.yaml: YAML with masked secrets."""
    return config_text.dump(safe_text.mask_values(self.as_dict()))


def lock(config: params_dict.ParamsDict) -> None:
  """Locks a configuration and the configurations inside it. Model Garden's own lock() stops at the first level.

  The inside of a task's `model` stays open: Model Garden's vision transformers write the settings of `model_name` into
  it when they are built.
  """
  for name, value in vars(config).items():
    is_model = name == 'model' and isinstance(config, model_garden_configs.TaskConfig)
    if name not in config.RESERVED_ATTR and not is_model:
      for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, params_dict.ParamsDict):
          lock(item)
  model_garden_internals.set_locked(config)


def upgrade(params: object) -> ExperimentConfig:
  """Gives an experiment the fields of this library.

  The experiment, its trainer, its runtime and its optimizer's configuration become instances of this library's classes
  with all their values. A class that an experiment derived from Model Garden's stays a base, and its values win. The
  task's own configurations are unchanged. `distribution_strategy='mirrored'` and
  `best_checkpoint_metric_comp='higher'` are Model Garden's defaults, not a choice: they become 'auto'. So does every
  `enable_xla`: Model Garden's true compiles on GPUs alone.

  Args:
    params: an experiment made of Model Garden's classes or of this library's, which is not changed. An object with the
      same attributes, such as a named tuple, gives its fields.

  Returns:
    A copy that shares nothing with `params`, or `params` itself if it has all fields. Locked parts of `params` are
    locked in the copy, with all that is inside it.
  """
  if not isinstance(params, base_config.Config):
    params = _from_attributes(params)
  return _extended(params, ExperimentConfig)


def _from_attributes(params: object) -> ExperimentConfig:
  """An experiment with the fields of a stand-in; missing fields have their defaults."""
  experiment = ExperimentConfig()
  parts = {name: copy.deepcopy(getattr(params, name)) for name in ('task', 'trainer', 'runtime')}
  for name, config_class in (('trainer', TrainerConfig), ('runtime', RuntimeConfig)):
    given = parts[name]
    if not isinstance(given, base_config.Config):
      known = [field.name for field in dataclasses.fields(config_class) if hasattr(given, field.name)]
      parts[name] = config_class()
      vars(parts[name]).update({field: getattr(given, field) for field in known})
  experiment.__dict__.update(parts)  # Past __setattr__, which would copy them once more.
  return experiment


# The fields of our classes whose values are extended too.
_EXTENDED_FIELDS: Mapping[type, Mapping[str, Any]] = {
  ExperimentConfig: {'trainer': TrainerConfig, 'runtime': RuntimeConfig},
  TrainerConfig: {'optimizer_config': OptimizationConfig},
  OptimizationConfig: {'optimizer': configs.OptimizerConfig, 'learning_rate': configs.LrConfig},
}
# The fields in which values of Model Garden give way to our default: its default, and what means something else there.
_OUR_DEFAULTS: Mapping[type, Mapping[str, tuple[object, ...]]] = {
  RuntimeConfig: {'distribution_strategy': ('mirrored',), 'enable_xla': (False, True)},  # True: on GPUs alone.
  TrainerConfig: {'best_checkpoint_metric_comp': ('higher',)},
}


def _extended(config: object, base: type[ConfigT]) -> ConfigT:
  """An extended copy of `config`, whose class has `base` among its bases; `config` itself if nothing is missing."""
  parts = {
    name: _extended(getattr(config, name), part_base)
    for name, part_base in _EXTENDED_FIELDS.get(base, {}).items()
    if isinstance(getattr(config, name, None), part_base.__base__)
  }
  parts = {name: part for name, part in parts.items() if part is not getattr(config, name)}
  if isinstance(config, base) and not parts:
    return config
  values = {name: parts[name] if name in parts else copy.deepcopy(value) for name, value in vars(config).items()}
  classes: tuple[Any, Any] = (type(config), base)
  config_class = _extended_class(*classes)
  if not isinstance(config, base):
    for name, given in _OUR_DEFAULTS.get(base, {}).items():
      if values[name] in given:
        values[name] = getattr(base, name)
    for field in dataclasses.fields(config_class):
      if field.name not in values:
        factory: Any = field.default_factory
        values[field.name] = field.default if factory is dataclasses.MISSING else factory()
  # Not the constructor, which would make defaults only to replace them, and would copy all values once more.
  extended = object.__new__(config_class)
  vars(extended).update(values)
  if model_garden_internals.is_locked(extended):
    lock(extended)
  return extended


@functools.cache
def _extended_class(config_class: Any, base: Any) -> Any:
  """A class that extends both: one of the two, if it extends the other; else a new dataclass, `config_class` first."""
  if issubclass(config_class, base):
    return config_class
  if issubclass(base, config_class):
    return base
  namespace: dict[str, object] = {'__module__': config_class.__module__, '__doc__': config_class.__doc__}
  return dataclasses.dataclass(type(config_class.__name__, (config_class, base), namespace))
