"""Fields of a data configuration that this library reads, with defaults for a configuration without them.

A task's data configuration derives from this library's DataConfig, from Model Garden's, or from neither: a config class
of a project, a namespace, None. `read` reads the fields once, so that its callers need not ask which of them exist.
No TensorFlow.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

TRAIN, VALIDATION = 'train_data', 'validation_data'  # The fields of a task's configuration.


@dataclasses.dataclass(frozen=True)
class DataFields:
  """The fields of a data configuration. The defaults are the values for a configuration that lacks them.

  Attributes:
    input_path: patterns of files; None for none.
    tfds_name: a TFDS data set; None for none.
    tfds_split: its split.
    tfds_data_dir: the folder of prepared data sets.
    global_batch_size: the examples of a batch of all replicas; 0 if it is not set.
    is_training: whether the data are read as for training.
    drop_remainder: whether the last batch is left out if it is not full.
    deterministic: false if the order of the examples may change.
    enable_tf_data_service: whether batches come from a tf.data service, if `tf_data_service_address` is set.
    tf_data_service_address: of the service.
    on_bad_example: the reaction to a damaged example.
    collator: the registered name of the function that makes a batch.
    num_parallel_calls: the number of batches that are prepared at the same time.
    seq_length: the length to which features are padded; 0 for that of the longest.
    pad_value: the number in the padding.
    decode_jpeg_only: whether images are decoded as JPEG alone; None if the configuration does not know it.
    decoder: Model Garden's configuration of the decoder; None without one.
  """

  input_path: Any = None
  tfds_name: Any = None
  tfds_split: str | None = None
  tfds_data_dir: str | None = None
  global_batch_size: int = 0
  is_training: bool | None = None
  drop_remainder: bool | None = False
  deterministic: bool | None = None
  enable_tf_data_service: bool = False
  tf_data_service_address: str | None = None
  on_bad_example: str = 'error'
  collator: str = 'stack'
  num_parallel_calls: int = 2
  seq_length: int | None = 0
  pad_value: float = 0
  decode_jpeg_only: bool | None = None
  decoder: Any = None

  @property
  def names_data(self) -> bool:
    """Whether the configuration names files or a TFDS data set."""
    return bool(self.input_path or self.tfds_name)

  @property
  def is_served(self) -> bool:
    """Whether batches come from a tf.data service."""
    return bool(self.enable_tf_data_service and self.tf_data_service_address)


_FIELDS = dataclasses.fields(DataFields)


def read(data: object) -> DataFields:
  """Reads the fields of a data configuration.

  Args:
    data: any configuration; None has the defaults.
  """
  values: dict[str, Any] = {field.name: getattr(data, field.name, field.default) for field in _FIELDS}
  return DataFields(**values)


def of_task(task_config: object, name: str) -> Any:
  """A data configuration of a task; None if the task's configuration has no such field, as for several tasks at once.

  Args:
    task_config: the task's configuration.
    name: `TRAIN` or `VALIDATION`.
  """
  return getattr(task_config, name, None)


def known(data: object, values: Mapping[str, Any]) -> dict[str, Any]:
  """The values whose names are fields of a data configuration.

  Args:
    data: the configuration.
    values: values by the names of fields.
  """
  return {name: value for name, value in values.items() if hasattr(data, name)}
