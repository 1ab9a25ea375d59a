"""Fields of a task's and its data's configurations that this library reads, with defaults where they are missing.

A configuration derives from this library's classes, from Model Garden's many, or from neither: a config class of a
project, a namespace, None. `of_task` and `of_data` read the fields once, so that their callers need not ask which of
them exist. No TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, TypeVar


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
    seq_length: the length to which features are padded; 0 for the length of the longest.
    pad_value: the number in the padding.
    decode_jpeg_only: whether images are decoded as JPEG alone; None if the configuration does not know it.
    decoder: Model Garden's configuration of the decoder; None without one.
    image_feature: the feature with the image, with its mean and deviation; None if `image_field_key` names it.
    image_field_key: the name of the feature with the image.
    output_size: height and width of the images after preprocessing; None if they are open.
    parser: Model Garden's configuration of the parser of boxes; None without one.
    vocab_file: the vocabulary of a tokenizer inside the pipeline.
    preprocessing_hub_module_url: of a module of TensorFlow Hub that tokenizes.
    text_fields: the features with texts.
    chat_template_path: the chat template instead of the tokenizer's.
    use_chat_template: whether texts without messages pass through the template too.
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
  image_feature: Any = None
  image_field_key: str = 'image/encoded'
  output_size: Sequence[int] | None = None
  parser: Any = None
  vocab_file: str = ''
  preprocessing_hub_module_url: str = ''
  text_fields: Sequence[str] | None = None
  chat_template_path: str = ''
  use_chat_template: bool | None = None

  @property
  def names_data(self) -> bool:
    """Whether the configuration names files or a TFDS data set."""
    return bool(self.input_path or self.tfds_name)

  @property
  def is_served(self) -> bool:
    """Whether batches come from a tf.data service."""
    return bool(self.enable_tf_data_service and self.tf_data_service_address)


@dataclasses.dataclass(frozen=True)
class TaskFields:
  """The fields of a task's configuration. The defaults are the values for a configuration that lacks them.

  Attributes:
    train_data: the configuration of the training data; None for none, as for several tasks at once.
    validation_data: the configuration of the validation data; None for none.
    model: the configuration of the model; None without one.
    init_checkpoint: the checkpoint from whose weights a new run starts; '' for none.
    init_checkpoint_modules: the parts of Model Garden's model that are read from it; None if it has no parts.
    init_checkpoint_may_miss: patterns of variables that may be missing there.
    losses: the configuration of Model Garden's losses; None without one.
    pruning: the configuration of pruning; None for none.
    annotation_file: COCO's annotations of the validation data; None for none.
    export_config: the configuration of Model Garden's export; None without one.
    max_completion_length: the tokens of an answer that a method of fine-tuning samples; None for others.
  """

  train_data: Any = None
  validation_data: Any = None
  model: Any = None
  init_checkpoint: str = ''
  init_checkpoint_modules: Any = None
  init_checkpoint_may_miss: Sequence[str] = ()
  losses: Any = None
  pruning: Any = None
  annotation_file: str | None = None
  export_config: Any = None
  max_completion_length: int | None = None


_Fields = TypeVar('_Fields', DataFields, TaskFields)


def of_data(data: object) -> DataFields:
  """Reads the fields of a data configuration.

  Args:
    data: any configuration; None has the defaults.
  """
  return _read(DataFields, data)


def of_task(task_config: object) -> TaskFields:
  """Reads the fields of a task's configuration.

  Args:
    task_config: any configuration; None has the defaults.
  """
  return _read(TaskFields, task_config)


def data_of(task_config: object, name: str) -> Any:
  """A data configuration of a task; None if it has none.

  Args:
    task_config: the task's configuration.
    name: 'train_data' or 'validation_data'.
  """
  return getattr(task_config, name, None)


def known(config: object, values: Mapping[str, Any]) -> dict[str, Any]:
  """The values whose names are fields of a configuration.

  Args:
    config: the configuration.
    values: values by the names of fields.
  """
  return {name: value for name, value in values.items() if hasattr(config, name)}


def _read(fields: type[_Fields], config: object) -> _Fields:
  values: dict[str, Any] = {
    field.name: getattr(config, field.name, field.default) for field in dataclasses.fields(fields)
  }
  return fields(**values)
