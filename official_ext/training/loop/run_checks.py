"""Checks a run before it writes anything: folders, checkpoints, lengths, memory, workers, metrics.

`MemoryEstimate` is the memory that a training will take, compared with the machine's. A run that cannot fit is refused
before its model is made; one that may not fit is warned of before its first step.
"""

from collections.abc import Mapping
import dataclasses
from importlib import machinery
import inspect
import json
import os
from typing import Any

from official.core import base_task
import tensorflow as tf

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.data import config_fields
from official_ext.data import data_identity
from official_ext.data import input_files
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.checkpoints import warm_start
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import ranges
from official_ext.training.devices import device_types
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import run_options
from official_ext.training.model_parts import model_size
from official_ext.training.optimization import configs
from official_ext.training.record import code_identity
from official_ext.training.record import run_record
from official_ext.training.step import gradient_tap
from official_ext.training.writers import writers

_WARN_ABOVE = 0.9
_GIB = 1 << 30
_COMPILATION = int(0.6e9)  # Of a step, on a CPU: the peak of runs with tiny batches, less all else.
# The slots of each trained number, in float32 numbers; of other optimizers there may be none.
_SLOTS = {
  **dict.fromkeys(
    ('adam', 'adamw', 'adam_experimental', 'adamw_experimental', 'adamw_torch', 'adamw_legacy', 'lamb'), 2.0
  ),
  **dict.fromkeys(('stable_adamw', 'lion'), 1.0),
}


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """What a training takes at its peak, and what there is. All in bytes.

  Attributes:
    resident: what the process takes before its first step: the program, weights, slots, data. On GPUs weights and
      slots alone.
    gradients: of the trained variables; twice if micro-batches are accumulated.
    activations: of a micro-batch.
    compilation: of tracing and compiling the step; 0 on GPUs, whose memory it does not take.
    total: the memory of the machine, the limit of its cgroup, or the memory of the smallest GPU; 0 for unknown.
    available: the rest of `total` for this process, with `resident`; 0 for unknown.
  """

  resident: int
  gradients: int
  activations: int
  compilation: int
  total: int
  available: int

  @property
  def peak(self) -> int:
    """Bytes at the peak of a step."""
    return self.resident + self.gradients + self.activations + self.compilation

  def describe(self) -> str:
    """One line for people."""
    values = {
      'now': self.resident,
      'gradients': self.gradients,
      'activations': self.activations,
      'compilation': self.compilation,
    }
    parts = ', '.join(f'{name} {_gib(count)}' for name, count in values.items())
    room = f'; {_gib(self.available)} of {_gib(self.total)} GiB available' if self.total else ''
    return f'about {_gib(self.peak)} GiB at the peak of a step ({parts}){room}'

  def warning(self) -> str:
    """One line if that is more than nine tenths of the available memory; ''."""
    if not self.available or self.peak <= _WARN_ABOVE * self.available:
      return ''
    return (
      f'memory: a step takes about {_gib(self.peak)} GiB, and {_gib(self.available)} GiB are available: the run may be '
      'killed; halve task.train_data.global_batch_size and double trainer.gradient_accumulation_steps, or set '
      'task.model.remat=block ("Memory" in docs/how_to/scale.md)'
    )


def estimate_memory(
  experiment: run_options.Experiment, size: model_size.ModelSize, model: Any
) -> MemoryEstimate | None:
  """The estimate of a training; None if the task does not estimate its activations.

  Args:
    experiment: of the run.
    size: of its model, with the optimizer's slots.
    model: the model.
  """
  strategy = experiment.strategy
  activations = experiment.task.activation_bytes(model, strategy.num_replicas_in_sync)
  if activations is None:
    return None
  copies = 2 if experiment.params.trainer.gradient_accumulation_steps > 1 else 1
  gradients = copies * size.gradient_bytes
  kind = device_types.device_type(strategy)
  if kind == 'GPU':
    total = _gpu_bytes()
    return MemoryEstimate(size.weight_bytes + size.slot_bytes, gradients, activations, 0, total, total)
  found = hardware.read_memory() if kind == 'CPU' else None
  resident = hardware.resident_memory()
  on_here = strategy.num_replicas_in_sync // max(1, experiment.workers.count)
  total, free = (found.total, found.available) if found else (0, 0)
  available = min(total, free + resident) if found else 0
  return MemoryEstimate(resident, on_here * gradients, on_here * activations, _COMPILATION, total, available)


def check_memory(task: Any, optimizer: str | None, strategy: tf.distribute.Strategy) -> None:
  """Refuses a training whose weights and optimizer slots alone are more than the memory: before the model is made.

  Args:
    task: of the run; one that does not know its weights is not refused.
    optimizer: the name of its type.
    strategy: of the run; each of its devices holds all weights.

  Raises:
    UserError: it cannot fit.
  """
  kind = device_types.device_type(strategy)
  least = task.least_weights()
  if least is None or kind == 'TPU':
    return
  weights, trained = least
  slots = int(4 * _SLOTS.get(optimizer or '', 0.0) * trained)
  found = hardware.read_memory()
  total = _gpu_bytes() if kind == 'GPU' else found.total if found else 0
  if total and weights + slots > total:
    of_slots = f' and {_gib(slots)} GiB of slots of {optimizer}' if slots else ''
    raise errors.UserError(
      f'task.model: {_gib(weights)} GiB of weights{of_slots} are more than the {_gib(total)} GiB of this '
      f'{"GPU" if kind == "GPU" else "machine"}; train adapters on weights in 4 bits (task.use_lora=true, '
      'task.load_in_4bit=true), or a smaller model'
    )


def _gpu_bytes() -> int:
  """The memory of the smallest GPU; 0 if it is unknown, as without nvidia-ml-py."""
  try:
    import pynvml  # pylint: disable=g-import-not-at-top  # Optional.

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=0)
  except Exception:  # pylint: disable=broad-except  # Not installed, no driver, no permission.
    return 0


def _gib(count: int) -> str:
  return f'{count / _GIB:,.3g}'


# Of modules' files as code_identity.py names them: `.so` of `.cpython-312-x86_64-linux-gnu.so`.
_EXTENSION_SUFFIXES = tuple({f'.{suffix.rpartition(".")[2]}' for suffix in machinery.EXTENSION_SUFFIXES})


def check_run(experiment: run_options.Experiment) -> training_lines.Start:
  """Refuses invalid settings before a model is built: see `train_lib.run_experiment`. Returns the start of the run."""
  task, mode, model_dir, params = experiment.task, experiment.mode, experiment.model_dir, experiment.params
  if mode not in checks.MODES:
    raise errors.UserError(f'--mode={mode}: no such mode; the modes are {", ".join(checks.MODES)}')
  ranges.check(params)  # A driver of its own may have made them without the parser.
  start = choose_start(experiment)
  task.evaluates = experiment.evaluates
  task.weights_folder = _folder_of_weights(start, mode, model_dir)
  run_record.check_writable(model_dir)
  if experiment.trains and experiment.is_chief:
    run_lock.check_free(model_dir)
  if experiment.trains and params.task.init_checkpoint and not manifests.complete_paths(model_dir):
    warm_start.find(params.task.init_checkpoint)
  run_record.check_places(model_dir, mode, params.trainer)
  checks.check_replicas(params.task, mode, experiment.strategy.num_replicas_in_sync, task)
  _check_shares_batches(task, experiment.strategy.num_replicas_in_sync)
  _check_class_names(experiment)
  if experiment.evaluates:
    check_detection(params.task)
  return start


_COCO_DETECTIONS = 100


def check_detection(task_config: Any) -> None:
  """Refuses evaluations of detectors whose figures would be wrong, by pycocotools' rules."""
  if not getattr(task_config, 'use_coco_metrics', True):
    return
  most = getattr(task_config, 'max_num_eval_detections', _COCO_DETECTIONS)
  if most != _COCO_DETECTIONS:
    raise errors.UserError(
      f'task.max_num_eval_detections: {most}: the AP would be -1, since pycocotools computes it for {_COCO_DETECTIONS} '
      f'detections; set {_COCO_DETECTIONS}, and count more by `official-ext evaluate`'
    )
  file = config_fields.of_task(task_config).annotation_file
  values = json_values.read_file(file, max_bytes=None) if file else None
  annotations = values.get('annotations') if values else None
  if isinstance(annotations, list) and any(isinstance(each, dict) and each.get('id') == 0 for each in annotations):
    raise errors.UserError(
      f'task.annotation_file: {file}: an annotation has the id 0, whose object pycocotools never counts as found; '
      'number annotations from 1, as official-ext prepare does'
    )


def object_warnings(task_config: Any) -> list[str]:
  """Warnings about objects that a detector leaves out, and about boxes that augmentation leaves out."""
  found = []
  for split in ('train_data', 'validation_data'):
    data = config_fields.data_of(task_config, split)
    parser = config_fields.of_data(data).parser
    limit, most = getattr(parser, 'max_num_instances', None), input_files.most_objects(data) if parser else 0
    if limit is not None and most > limit:
      found.append(
        f'task.{split}.parser.max_num_instances: is {limit}, and an image has {most} objects: those beyond it count as '
        f'background; set {most}'
      )
    augmentation = getattr(parser, 'aug_type', None)
    if augmentation is not None and augmentation.type in ('randaug', 'autoaug') and split == 'train_data':
      found.append(
        f'task.{split}.parser.aug_type: translations, shears and rotations of Model Garden fill the empty area with '
        'mirrored pixels, so with objects that have no box'
      )
  return found


def _check_class_names(experiment: run_options.Experiment) -> None:
  """Refuses data whose classes have another order than those that the model learns, or has learned in this folder."""
  train, validation = (
    config_fields.data_of(experiment.params.task, name) for name in ('train_data', 'validation_data')
  )
  if train is None:
    return
  names = input_files.find_class_names(train)
  if experiment.evaluates and validation is not None:
    of_validation = input_files.find_class_names(validation)
    input_files.check_same_classes('task.validation_data', of_validation, 'task.train_data', names)
  path = os.path.join(experiment.model_dir, model_folders.RUN_FILE)
  if experiment.trains and len(names) and manifests.complete_paths(experiment.model_dir) and paths.exists(path):
    before = config_text.load_file(path, 'the run').get('task') or {}
    pattern = (before.get('train_data') or {}).get('input_path')
    if pattern and pattern != config_fields.of_data(train).input_path:
      learned = input_files.find_class_names(train.replace(input_path=pattern))
      input_files.check_same_classes('task.train_data', names, f'the data of the run ({pattern})', learned)


def _check_shares_batches(task: protocols.Task, num_replicas: int) -> None:
  """Refuses a task whose inputs cannot learn which share of a batch is theirs: Orbit passes `input_context` by name."""
  if num_replicas > 1 and 'input_context' not in inspect.signature(task.build_inputs).parameters:
    raise errors.UserError(
      f'{type(task).__name__}.build_inputs: has no argument input_context, and each of {num_replicas} replicas would '
      'take a whole global batch; expected build_inputs(self, params, input_context=None)'
    )


def check_same_params(experiment: run_options.Experiment) -> None:
  """Refuses workers whose configuration or flags differ from the chief's, before they build different models."""
  options, params = experiment.options, experiment.params.as_dict()
  command = {'--mode': experiment.mode, '--checkpoint': options.checkpoint, '--branch': options.branch, **params}
  experiment.workers.check_same('params', config_text.dump(command), config_text.text_differences)


def check_same_on_workers(
  workers: workers_lib.Workers,
  flags: Mapping[str, object],
  versions: Mapping[str, object],
  code: Mapping[str, object],
  data: Mapping[str, object],
) -> None:
  """Refuses workers that would not train the same: others than the chief's would change its result silently.

  Args:
    workers: all that run together. All of them must call.
    flags: the flags that params do not hold, by name.
    versions: the versions of packages: see code_identity.py. Of Python's, major and minor are compared.
    code: the digests of code. Compiled extension modules, which may differ between machines, are not compared.
    data: the identities of the inputs: see data/data_identity.py.

  Raises:
    UserError: naming both workers and both values.
  """

  def of_names(one: str, other: str) -> list[str]:
    return code_identity.differences(json.loads(one), json.loads(other))

  for topic, here, differences in (
    ('flags', flags, of_names),
    ('packages', _compared_versions(versions), of_names),
    ('code', {name: digest for name, digest in code.items() if not name.endswith(_EXTENSION_SUFFIXES)}, of_names),
    ('data', data, _data_differences),
  ):
    workers.check_same(topic, json.dumps(here, sort_keys=True, default=str), differences)


def _compared_versions(versions: Mapping[str, object]) -> json_values.JsonObject:
  return {**versions, 'python': '.'.join(str(versions.get('python')).split('.')[:2])}


def _data_differences(one: str, other: str) -> list[str]:
  """A line for each difference between two inputs, even in entries that only one of them has."""
  before, now = json.loads(one), json.loads(other)
  lines = []
  for name in sorted({*before, *now}):
    old, new = before.get(name, []), now.get(name, [])
    found = data_identity.differences(f'task.{name}', old, new)
    if old != new and not found:
      found = [f'task.{name}: {json.dumps(old)} -> {json.dumps(new)}']
    lines += found
  return lines


def _folder_of_weights(start: training_lines.Start, mode: str, model_dir: str) -> str:
  """See `Task.weights_folder`."""
  if start.checkpoint:
    return manifests.folder_of(start.checkpoint)
  return model_dir if 'train' not in mode or manifests.saved_paths(model_dir) else ''


def choose_start(
  experiment: run_options.Experiment, before: training_lines.Start | None = None
) -> training_lines.Start:
  """Chooses the start of the run, on the chief. A mode that does not train uses `--checkpoint`. Writes nothing.

  Args:
    experiment: the experiment.
    before: the previous choice, which was checked and reported, if this is not the first time.

  Raises:
    UserError: there is no such checkpoint, or it would start another line of training.
  """
  mode, model_dir, workers = experiment.mode, experiment.model_dir, experiment.workers
  checkpoint, branch = experiment.options.checkpoint, experiment.options.branch
  if 'train' not in mode and before is not None:
    return before
  if 'train' not in mode:
    checkpoint = checkpoint and training_lines.checkpoint_named(checkpoint, f'--checkpoint={checkpoint}')
    listing.check_available(model_dir, mode, checkpoint)
    return training_lines.Start(checkpoint)

  def choose():
    return dataclasses.asdict(training_lines.choose_start(model_dir, checkpoint, branch))

  start = training_lines.Start(**workers.from_chief('start', choose))
  if start == before:
    return start
  listing.check_available(model_dir, mode, start.checkpoint)
  if start.message and workers.is_chief:
    print(f'--checkpoint={checkpoint}: {start.message}' if checkpoint else start.message, flush=True)
  return start


def check_learning_rate(experiment: run_options.Experiment, trainer: protocols.Trainer) -> None:
  """Refuses a training whose learning rate is 0 at each of its steps, or is not finite.

  Of a training that was interrupted, all steps count: if the steps before the interruption had another rate, the rest
  may have 0. Of one that had finished, the steps that are added count.

  Args:
    experiment: with its length in steps, and the start of the run.
    trainer: with the run's optimizer.

  Raises:
    UserError: the learning rate cannot train.
  """
  train_steps = experiment.params.trainer.train_steps
  first = experiment.workers.from_chief('first step', lambda: _first_new_step(experiment.model_dir, experiment.start))
  wrong = configs.rate_problem(gradient_tap.inner_optimizer(trainer.optimizer), first, train_steps)
  if wrong:
    raise errors.UserError(
      f'trainer.optimizer_config: {wrong}; lower warmup_steps, or make the schedule as long as trainer.train_steps, '
      f'which is {train_steps}'
    )


def _first_new_step(model_dir: str, start: training_lines.Start) -> int:
  """The step at which a line of training begins, or begins to be longer than it was."""
  if start.checkpoint and start.origins:
    return int(start.origins[-1]['step'])
  saved = manifests.complete_paths(model_dir)
  has_finished = (run_status.read(model_dir) or {}).get('status') == 'finished'
  return manifests.step_of(saved[-1]) if saved and has_finished else 0


def check_log_names(task: protocols.Task, trainer: Any, mode: str, evaluates: bool = True) -> None:
  """Refuses metrics of which two, or one and a value that the loop logs, have one name: one of them would be lost.

  Args:
    task: the experiment's.
    trainer: made for it.
    mode: of its use.
    evaluates: whether the run evaluates, now or at its end.

  Raises:
    UserError: names the task and the name.
  """
  of_training = [metric.name for metric in trainer.train_metrics] if 'train' in mode else []
  of_evaluation = (
    [metric.name for metric in trainer.validation_metrics] + [*task.evaluation_end_names] if evaluates else []
  )
  for names in (of_training, of_evaluation):
    for name in names:
      if [*names, *run_files.LOOP_LOGS].count(name) > 1:
        raise errors.UserError(
          f'{type(task).__name__}: {name!r} is the name of two logged values (metrics of build_metrics, values of '
          'evaluation_end, values of the loop); rename one of them'
        )


def check_metrics(
  config: definitions.TrainerConfig, task: protocols.Task, trainer: protocols.Trainer, mode: str, evaluates: bool = True
) -> None:
  """Refuses metrics that decide something, and that no evaluation of the run will report.

  Args:
    config: names the metrics of the best checkpoint, of early stopping and of lowering the learning rate.
    task: the experiment's.
    trainer: made for it.
    mode: of its use.
    evaluates: whether the run evaluates, now or at its end.

  Raises:
    UserError: the mode trains without an evaluation, no evaluation reports the metric (it lists those that one does),
      or the direction that is set contradicts the metric's name.
  """
  name = config.best_checkpoint_eval_metric
  if evaluates and config.best_checkpoint_export_subdir and name:
    _check_reported('trainer.best_checkpoint_eval_metric', name, task, trainer)
    config.check_direction('trainer')
  for part in ('early_stopping', 'reduce_lr_on_plateau'):
    field, name = f'trainer.{part}.metric', getattr(config, part).metric
    if name and mode == 'train_and_eval':
      _check_reported(field, name, task, trainer)
      getattr(config, part).check_direction(f'trainer.{part}')
    elif name and 'train' in mode:
      raise errors.UserError(f'{field}: {name}: mode {mode} does not evaluate while it trains; use train_and_eval')


def _check_reported(field: str, name: str, task: Any, trainer: Any) -> None:
  """Refuses a metric that no evaluation of the task will report."""
  reports = {trainer.validation_loss.name}
  for metric in trainer.validation_metrics:
    result = metric.result() if metric.name == name.split('|')[0] else None  # A dictionary, or a number.
    reports |= {leaf for leaf, _ in writers.leaves({metric.name: result}, '|')}
  # A task that makes metrics at the end of an evaluation names them only then.
  if name in reports or type(task).reduce_aggregated_logs is not base_task.Task.reduce_aggregated_logs:
    return
  reports |= {*trainer.validation_log_names(), *task.evaluation_end_names}
  if name in reports or name.split('|')[0] in task.evaluation_end_names:  # Its values may be nested.
    return
  hint = errors.did_you_mean(name, sorted(reports), after=' ')
  raise errors.UserError(f'{field}: {name}: {hint}{type(task).__name__} reports {", ".join(sorted(reports))}')
