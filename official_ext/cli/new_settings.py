"""official-ext new NAME --like=image_classifier: writes settings of an experiment of Model Garden for prepared data."""

from collections.abc import Callable, Mapping
import copy
import dataclasses
import os
import re
import shlex

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.data.prepare import conversions
from official_ext.language.text import bert_targets
from official_ext.vision.conversion import image_set

_NAME = re.compile(r'[A-Za-z0-9][\w.-]*')
_LEAST_STEPS = 600
_LEAST_FEATURES = 7  # Of each side of the last feature map, as of MobileNet on ImageNet's 224 pixels.
_BACKBONE_SCALE = 0.1  # Of the learning rate of parts that start from a checkpoint.
_MAX_LABELS = 40
_EXAMPLES = {
  'image_classifier': 'photos',
  'detector': 'annotations.json',
  'segmenter': 'photos',
  'bert_classifier': 'texts.csv',
}


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of experiment for small data.

  Attributes:
    experiments: Model Garden's experiment, by the target of `official-ext prepare --for`.
    part: the part of the model that takes the weights of a checkpoint.
    batch_size: the largest number of examples of an update.
    task: adds the task's settings to its values; takes them and the checkpoint.
  """

  experiments: Mapping[str, str]
  part: str
  batch_size: int
  task: Callable[[json_values.JsonObject, str], None]


def _classifier(task: json_values.JsonObject, checkpoint: str) -> None:
  task['model']['dropout_rate'] = 0.2
  task['losses'] = {'label_smoothing': 0.1}
  # Model Garden's crops of 0.08 of the area and more leave little of an object; ImageNet is large enough for that.
  task['train_data']['crop_area_range'] = [0.5, 1.0]
  # Features of a small image would be 2 x 2: the network learns late, or never.
  side = min(task['model']['input_size'][:2])
  stride = next((stride for stride in (32, 16) if side // stride >= _LEAST_FEATURES), 8)
  task['model']['backbone'] = {'type': 'mobilenet', 'mobilenet': {'output_stride': stride}}
  _backbone(task, checkpoint)


def _backbone(task: json_values.JsonObject, checkpoint: str) -> None:
  task['init_checkpoint'] = checkpoint or None
  task['init_checkpoint_modules'] = 'backbone'


def _detector(task: json_values.JsonObject, checkpoint: str) -> None:
  _backbone(task, checkpoint)
  task['per_category_metrics'] = 'annotation_file' in task


def _bert(task: json_values.JsonObject, checkpoint: str) -> None:
  task['init_checkpoint'] = checkpoint
  encoder = task['model']['encoder']['bert']
  encoder.update(_bert_sizes(checkpoint) if checkpoint else _SMALL_ENCODER)


# Of google/bert_uncased_L-2_H-128_A-2 (Turc et al. 2019, arXiv:1908.08962): without a checkpoint a large encoder
# learns nothing from small data.
_SMALL_ENCODER = {'num_layers': 2, 'hidden_size': 128, 'num_attention_heads': 2, 'intermediate_size': 512}
# From the names in bert_config.json of Google's BERT releases to Model Garden's.
_BERT_FIELDS = {
  'num_hidden_layers': 'num_layers',
  'hidden_size': 'hidden_size',
  'num_attention_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
  'max_position_embeddings': 'max_position_embeddings',
  'type_vocab_size': 'type_vocab_size',
  'vocab_size': 'vocab_size',
}


def _bert_sizes(checkpoint: str) -> json_values.JsonObject:
  """The sizes in the bert_config.json of a checkpoint's folder; {} without one, which means BERT-base."""
  path = os.path.join(checkpoint if paths.is_folder(checkpoint) else os.path.dirname(checkpoint), 'bert_config.json')
  values = json_values.read_file(path) or {}
  return {ours: values[theirs] for theirs, ours in _BERT_FIELDS.items() if isinstance(values.get(theirs), int)}


KINDS = {
  'image_classifier': Kind({image_set.CLASSIFICATION: 'mobilenet_imagenet'}, 'backbone', 16, _classifier),
  'detector': Kind({name: image_set.EXPERIMENTS[name] for name in image_set.WITH_BOXES}, 'backbone', 8, _detector),
  'segmenter': Kind({image_set.SEGMENTATION: image_set.EXPERIMENTS[image_set.SEGMENTATION]}, 'backbone', 8, _backbone),
  'bert_classifier': Kind(
    {bert_targets.CLASSIFICATION: bert_targets.EXPERIMENTS[bert_targets.CLASSIFICATION]}, 'encoder', 16, _bert
  ),
}


def run(name: str, like: str, data: str, init_checkpoint: str = '') -> json_values.JsonObject:
  """Writes NAME.yaml into the current folder, and prints the commands that use it.

  Args:
    name: of the file, without its ending.
    like: one of `KINDS`.
    data: a folder of `official-ext prepare --for`.
    init_checkpoint: the path of a checkpoint, or of a folder with one; '' for random weights.

  Returns:
    {name, files, commands}: for a program.

  Raises:
    UserError: the name or a path cannot be used, or the folder was prepared for another task. Nothing was written.
  """
  kind, path = KINDS[like], f'{name}.yaml'
  if not _NAME.fullmatch(name):
    raise errors.UserError(f'{name}: cannot be the name of a file of settings; take letters, digits, _, . and -')
  target = next(iter(kind.experiments))
  if not data:
    raise errors.UserError(
      f'--data: is missing; name a folder that `official-ext prepare {_EXAMPLES[like]} FOLDER --for={target}` writes'
    )
  if os.path.exists(path):
    raise errors.UserError(f'{path}: exists already; nothing was written')
  if init_checkpoint:
    init_checkpoint = _checkpoint(init_checkpoint)
  folder = os.path.abspath(os.path.expanduser(data))
  prepared = input_files.describe_prepared(folder, '--data')
  if prepared.kind not in kind.experiments:
    other = next((name for name, each in KINDS.items() if prepared.kind in each.experiments), '')
    hint = f'use --like={other}' if other else f'prepare one with --for={target}'
    raise errors.UserError(f'--data: {data}: was prepared for {prepared.kind}, not for {target}; {hint}')
  experiment = kind.experiments[prepared.kind]
  values = settings_of(prepared, kind, init_checkpoint)
  commands = _commands(name, experiment, folder, prepared.kind, values)
  text = _text(name, like, experiment, values, _labels(folder), commands)
  paths.write_atomically(path, text.encode())
  print(f'wrote    {path}')
  for what, command in commands.items():
    print(f'{what:<9}{command}')
  return {'name': name, 'files': [path], 'commands': list(commands.values())}


def settings_of(prepared: input_files.PreparedFolder, kind: Kind, init_checkpoint: str) -> json_values.JsonObject:
  """The values of the file: the prepared folder's, changed for small data."""
  values = copy.deepcopy(config_text.load_file(os.path.join(prepared.folder, input_files.CONFIG), '--data'))
  task, train_data = values['task'], values['task']['train_data']
  num_train = sum(
    rows for file, rows, *_ in prepared.files if os.path.basename(file).startswith(f'{conversions.TRAIN}-')
  )
  train_data['global_batch_size'] = min(train_data['global_batch_size'], kind.batch_size, num_train)
  kind.task(task, init_checkpoint)
  before = values['trainer']
  rate = before['optimizer_config']['learning_rate']['cosine']['initial_learning_rate']
  if kind.part == 'encoder' and not init_checkpoint:
    rate = conversions.SMALL_ENCODER_RATE
  steps_per_epoch = max(1, num_train // train_data['global_batch_size'])
  trainer = conversions.trainer_settings(steps_per_epoch, rate, least_steps=_LEAST_STEPS)
  if 'norm_activation' in task['model']:
    task['model']['norm_activation']['norm_momentum'] = conversions.norm_momentum(trainer['train_steps'])
  optimizer = trainer['optimizer_config']
  optimizer['ema'] = {'average_decay': 0.99 if trainer['train_steps'] < conversions.FEW_STEPS else 0.999}
  if init_checkpoint:
    optimizer['parameter_groups'] = [{'patterns': [f'^{kind.part}/'], 'learning_rate_scale': _BACKBONE_SCALE}]
  trainer.update({field: value for field, value in before.items() if field not in trainer})
  # One thread draws the augmentation: otherwise two runs differ, killed or not.
  runtime = {**values.get('runtime', {}), 'deterministic': True}
  return {
    'runtime': runtime,
    **{name: value for name, value in values.items() if name != 'runtime'},
    'trainer': trainer,
  }


def _checkpoint(given: str) -> str:
  """The absolute path of a local checkpoint.

  Raises:
    UserError: it does not exist.
  """
  path = paths.absolute(paths.expanded(given))
  if paths.is_remote(path):
    return path
  if not os.path.isdir(path) and not os.path.isfile(f'{path}.index'):
    raise errors.UserError(f'--init_checkpoint: {given}: no such checkpoint; expected a folder, or DIR/ckpt-100')
  return path


def _labels(folder: str) -> list[str]:
  try:
    return paths.split_lines(paths.read(os.path.join(folder, input_files.LABELS)))
  except OSError as error:
    raise errors.UserError(
      f'--data: {folder}/{input_files.LABELS}: cannot be read: {error.strerror}; prepare it again'
    ) from error


def _commands(name: str, experiment: str, folder: str, target: str, values: json_values.JsonObject) -> dict[str, str]:
  flags = f'--experiment={experiment} --config_file={name}.yaml'
  mode = 'train_and_eval' if 'validation_data' in values['task'] else 'train'
  found = {'prepare': f'official-ext prepare INPUT {shlex.quote(folder)} --for={target}'}
  if target in image_set.TARGETS:
    found['preview'] = f'official-ext preview {experiment} --config_file={name}.yaml'
  found['train'] = f'official-ext train {flags} --mode={mode} --model_dir=runs/{name}'
  if mode == 'train_and_eval':
    found['evaluate'] = f'official-ext evaluate runs/{name}'
  return found


def _text(
  name: str,
  like: str,
  experiment: str,
  values: json_values.JsonObject,
  labels: list[str],
  commands: Mapping[str, str],
) -> str:
  """The file: its head of comments, and its values, those to change marked."""
  part = KINDS[like].part
  more = f' and {len(labels) - _MAX_LABELS} more' if len(labels) > _MAX_LABELS else ''
  named = [f'{number} {label}' for number, label in enumerate(labels[:_MAX_LABELS])]
  head = [
    f'{name}: {like} for small data, over the experiment {experiment} of Model Garden.',
    f'Classes: {", ".join(named)}{more}',
    '',
    *(f'{what:<9}{command}' for what, command in commands.items()),
    '',
    'Lines marked CHANGE hold paths of this machine. With a checkpoint, this slows its part down:',
    f'  parameter_groups: [{{patterns: [^{part}/], learning_rate_scale: {_BACKBONE_SCALE}}}]',
  ]
  marks = {
    'init_checkpoint': f'the {part}: a checkpoint, or a folder with one; empty for random weights',
    'input_path': 'the data',
    'annotation_file': 'the data',
    'vocab_file': 'the vocabulary of the checkpoint',
  }
  lines = []
  for line in config_text.dump(values).splitlines():
    key = line.split(':')[0].strip()
    lines.append(f'{line}  # CHANGE: {marks[key]}' if key in marks else line)
  return '\n'.join([*(f'# {line}'.rstrip() for line in head), *lines]) + '\n'
