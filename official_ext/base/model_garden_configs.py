"""The configuration classes of an experiment in Model Garden, with their types; base_config.py has their base class.

Model Garden has no type information, so a class derived from its own would accept any argument and any attribute. Type
checkers read the declarations here; a program gets Model Garden's classes. Fields are declared with the types that this
library accepts.
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from official_ext.base import base_config

if TYPE_CHECKING:

  @dataclasses.dataclass
  class DataConfig(base_config.Config):
    """See `official.core.config_definitions.DataConfig`."""

    input_path: str | Sequence[str] | base_config.Config = ''
    tfds_name: str | base_config.Config = ''
    tfds_split: str = ''
    global_batch_size: int = 0
    is_training: bool | None = None
    drop_remainder: bool | None = True
    shuffle_buffer_size: int = 100
    cache: bool = False
    cycle_length: int | None = None
    block_length: int = 1
    ram_budget: int | None = None
    deterministic: bool | None = None
    sharding: bool = True
    enable_tf_data_service: bool = False
    tf_data_service_address: str | None = None
    tf_data_service_job_name: str | None = None
    tfds_data_dir: str = ''
    tfds_as_supervised: bool = False
    tfds_skip_decoding_feature: str = ''
    enable_shared_tf_data_service_between_parallel_trainers: bool = False
    apply_tf_data_service_before_batching: bool = False
    trainer_id: str | None = None
    seed: int | None = None
    prefetch_buffer_size: int | None = None
    autotune_algorithm: str | None = None

  @dataclasses.dataclass
  class RuntimeConfig(base_config.Config):
    """See `official.core.config_definitions.RuntimeConfig`."""

    distribution_strategy: str = 'mirrored'
    enable_xla: bool | str = False
    gpu_thread_mode: str | None = None
    dataset_num_private_threads: int | None = None
    per_gpu_thread_count: int = 0
    tpu: str | None = None
    num_gpus: int = 0
    worker_hosts: str | None = None
    task_index: int = -1
    all_reduce_alg: str | None = None
    num_packs: int = 1
    mixed_precision_dtype: str | None = None
    loss_scale: str | float | None = None
    run_eagerly: bool = False
    batchnorm_spatial_persistent: bool = False
    tpu_enable_xla_dynamic_padder: bool | None = None
    num_cores_per_replica: int = 1
    default_shard_dim: int = -1
    use_tpu_mp_strategy: bool = False

    def model_parallelism(self) -> dict[str, int]: ...

  @dataclasses.dataclass
  class TrainerConfig(base_config.Config):
    """See `official.core.config_definitions.TrainerConfig`; `optimizer_config` is declared by the subclass."""

    train_tf_while_loop: bool = True
    train_tf_function: bool = True
    eval_tf_function: bool = True
    eval_tf_while_loop: bool = False
    allow_tpu_summary: bool = False
    steps_per_loop: int = 1000
    summary_interval: int = 1000
    checkpoint_interval: int = 1000
    max_to_keep: int = 5
    continuous_eval_timeout: int = 60 * 60
    train_steps: int = 0
    validation_steps: int = -1
    validation_interval: int = 1000
    best_checkpoint_export_subdir: str = ''
    best_checkpoint_eval_metric: str = ''
    best_checkpoint_metric_comp: str = 'higher'
    loss_upper_bound: float = 1e6
    recovery_begin_steps: int = 0
    recovery_max_trials: int = 0
    validation_summary_subdir: str = 'validation'
    preemption_on_demand_checkpoint: bool = True

  @dataclasses.dataclass
  class TaskConfig(base_config.Config):
    """See `official.core.config_definitions.TaskConfig`; `model` may be of any class of configurations."""

    init_checkpoint: str = ''
    model: Any = None
    train_data: DataConfig = dataclasses.field(default_factory=DataConfig)
    validation_data: DataConfig = dataclasses.field(default_factory=DataConfig)
    name: str | None = None
    differential_privacy_config: base_config.Config | None = None
    allow_image_summary: bool = False

  @dataclasses.dataclass
  class ExperimentConfig(base_config.Config):
    """See `official.core.config_definitions.ExperimentConfig`."""

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
else:
  from official.core.config_definitions import DataConfig as DataConfig
  from official.core.config_definitions import ExperimentConfig as ExperimentConfig
  from official.core.config_definitions import RuntimeConfig as RuntimeConfig
  from official.core.config_definitions import TaskConfig as TaskConfig
  from official.core.config_definitions import TrainerConfig as TrainerConfig
