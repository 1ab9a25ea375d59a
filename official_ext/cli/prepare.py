"""official-ext prepare: writes shards of texts, records or images, which training reads directly.

With --for=TARGET it converts annotated images or texts for experiments of Model Garden. The flags of each kind come
first: splits, images, annotated texts. The command follows.
"""

import argparse
from collections.abc import Collection, Mapping
import os
import shlex
import sys
from typing import Any

from official_ext.base import errors
from official_ext.base import terminal_row
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.data import bad_examples
from official_ext.data import record_report
from official_ext.data.prepare import conversions
from official_ext.data.prepare import engines
from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows
from official_ext.training.devices import signals
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import image_set
from official_ext.vision.conversion import input_formats

SPLIT_FLAGS = ('validation_input', 'test_input', 'validation_share', 'test_share', 'seed', 'labels')


def add_split_arguments(group: Any) -> None:
  """Adds the flags; without --for they are refused."""
  group.add_argument('--validation_input', metavar='PATH', help='validation examples, in the same format as INPUT')
  group.add_argument('--test_input', metavar='PATH', help='test examples, in the same format')
  share = 'of examples for validation, chosen by a hash; default: 0.1, unless the input has splits'
  group.add_argument('--validation_share', type=_share, metavar='SHARE', help=share)
  group.add_argument('--test_share', type=_share, metavar='SHARE', help='the same for test; default: 0')
  group.add_argument('--seed', type=arguments_lib.at_least(0), metavar='N', help='of splits and order; default: 0')
  labels = 'the names of the classes, one on each line, in the order of their numbers; other classes are dropped'
  group.add_argument('--labels', metavar='FILE', help=labels)


def given_flags(known: argparse.Namespace, names: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
  """The flags that were given, by name.

  Args:
    known: the parsed arguments.
    names: of the flags of this target.
    others: flags of other targets, which are refused.

  Raises:
    UserError: it names the first wrong flag.
  """
  for name in others:
    if getattr(known, name) is not None:
      raise errors.UserError(f'--{name}: has no meaning for --for={known.target}')
  if known.split:
    raise errors.UserError('--split: with --for all splits are converted; name one by INPUT and --validation_input')
  return {name: getattr(known, name) for name in (*SPLIT_FLAGS, *names) if getattr(known, name) is not None}


def inputs_by_split(flags: dict[str, Any], inputs: list[str]) -> dict[str, list[str]]:
  """The paths by split; '' for INPUT. Takes the flags that name paths out of `flags`.

  Raises:
    UserError: the flags contradict each other.
  """
  found = {'': inputs}
  for split in (conversions.VALIDATION, conversions.TEST):
    path = flags.pop(f'{split}_input', None)
    if path:
      found[split] = [path]
  if conversions.VALIDATION in found and 'validation_share' in flags:
    raise errors.UserError('--validation_share: --validation_input names the validation examples; give one of them')
  if flags.get('validation_share', 0.1) + flags.get('test_share', 0.0) >= 1:
    raise errors.UserError('--validation_share: no example is left for training; the shares must sum to less than 1')
  return found


def warn_of_unused_shares(flags: Mapping[str, Any], named: Collection[str]) -> None:
  """Prints which shares do nothing, because the input names the examples.

  Args:
    flags: that were given.
    named: the splits that the input names.
  """
  for split, others in ((conversions.VALIDATION, ()), (conversions.TEST, (conversions.VALIDATION,))):
    names = [each for each in (split, *others) if each in named]
    if names and flags.get(f'{split}_share'):
      print(f'warning: --{split}_share: the input names its {names[0]} examples: the share is not used')


def counted_noun(count: int, noun: str, nouns: str = '') -> str:
  """A number and its noun: '1 image', '2 images'; `nouns` is an irregular plural."""
  return f'{count} {noun if count == 1 else nouns or noun + "s"}'


def print_balance(done: preparing.Prepared) -> None:
  """Prints the accounts of the input: found, used, left out, not read."""
  for balance in done.balance:
    print(f'balance: {record_report.balance_line(balance)}')


def print_split_summary(
  done: preparing.Prepared,
  output: str,
  noun: str,
  counts: Mapping[str, int],
  experiment: str,
  *more: str,
  hint: str = '',
) -> None:
  """Prints the counts of a conversion, and the command that trains on it.

  Args:
    done: the conversion's result.
    output: its folder.
    noun: 'image' or 'example'.
    counts: their number by split.
    experiment: the name of Model Garden's experiment.
    *more: further words of the command.
    hint: follows "To train on them".
  """
  print_balance(done)
  there = f', {done.num_there} of which existed' if done.num_there else ''
  of_splits = ', '.join(f'{count} {split}' for split, count in counts.items())
  shards = f'{done.num_bytes} bytes in {counted_noun(len(done.plan.shards), "shard")}{there}'
  print(f'{output}: {counted_noun(sum(counts.values()), noun)} ({of_splits}), {shards}')
  words = [
    'official-ext train',
    f'--experiment={experiment}',
    shlex.quote(f'--config_file={done.config_path}'),
    f'--mode={"train_and_eval" if conversions.VALIDATION in counts else "train"}',
    shlex.quote(f'--model_dir=runs/{os.path.basename(os.path.abspath(output))}'),
    *more,
  ]
  print(f'To train on them{hint}:')
  print(f'  {" ".join(words)}')


def _share(text: str) -> float:
  value = float(text)
  if not 0 <= value < 1:
    raise argparse.ArgumentTypeError(f'{text}: expected a number from 0 to below 1')
  return value


IMAGE_FLAGS = ('image_format', 'quality', 'coordinates', 'mask_values', 'images', 'box_format')


def add_image_arguments(group: Any) -> None:
  """Adds the flags of images; without --for they are refused."""
  image_format = 'of the stored images; png keeps pixels exactly, and is slower to train on; default: jpeg'
  group.add_argument('--image_format', choices=('jpeg', 'png'), help=image_format)
  quality = f'of converted and of turned JPEG images, 1 to 100; default: {image_set.Conversion.quality}'
  group.add_argument('--quality', type=_quality, metavar='N', help=quality)
  coordinates = 'whether boxes and masks refer to images before or after their EXIF rotation; default: auto'
  group.add_argument('--coordinates', choices=('auto', 'shown', 'stored'), help=coordinates)
  mask_values = 'the values of pixels in masks that are the classes 0, 1, ..., such as 0,255; others are ignored'
  group.add_argument('--mask_values', type=_mask_values, metavar='N,N', help=mask_values)
  group.add_argument('--images', type=arguments_lib.folder, metavar='FOLDER', help='the images of COCO JSON or VOC')
  box_format = 'of the column objects: xywh: left, top, width, height; xyxy: corners; default: xywh'
  group.add_argument('--box_format', choices=('xywh', 'xyxy'), help=box_format)


def image_conversion(
  known: argparse.Namespace, settings: planning.Settings, others: tuple[str, ...]
) -> converting.Conversion:
  """The conversion that the flags define, its annotations read.

  Args:
    known: the parsed arguments.
    settings: of the shards.
    others: flags of other targets, which are refused.

  Raises:
    UserError: of the flags or the input.
  """
  given = given_flags(known, IMAGE_FLAGS, others)
  inputs = inputs_by_split(given, conversions.matching_paths(known.inputs))
  reading = input_formats.Reading(given.pop('images', None) or '', given.pop('box_format', 'xywh'))
  labels = conversions.read_labels(given.pop('labels')) if 'labels' in given else []
  conversion = image_set.Conversion(target=known.target, **given)
  found = converting.Conversion(inputs, conversion, settings, reading, labels)
  warn_of_unused_shares(given, found.named_splits)
  return found


def print_image_summary(conversion: converting.Conversion, done: preparing.Prepared, output: str) -> None:
  """Prints counts, losses, and the command that trains."""
  for line in converting.report_lines(conversion.report):
    print(f'warning: {line}')
  counts = {split: values['images'] for split, values in conversion.report['splits'].items()}
  print_split_summary(done, output, 'image', counts, image_set.EXPERIMENTS[done.plan.kind])


def _quality(text: str) -> int:
  value = int(text)
  if not 1 <= value <= 100:
    raise argparse.ArgumentTypeError(f'{text}: expected 1 to 100')
  return value


def _mask_values(text: str) -> tuple[int, ...]:
  try:
    found = tuple(int(word) for word in text.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(f'{text}: expected numbers such as 0,255') from None
  if len(set(found)) < len(found) or len(found) > 255:
    raise argparse.ArgumentTypeError(f'{text}: expected each number once, 255 at most')
  return found


TEXT_FLAGS = ('vocab_file', 'do_lower_case', 'text_fields', 'label_field', 'doc_stride', 'query_length')


def add_annotated_text_arguments(group: Any) -> None:
  """Adds the flags; without --for they are refused."""
  vocabulary = 'vocab.txt of the BERT checkpoint; required'
  group.add_argument('--vocab_file', metavar='FILE', help=vocabulary)
  lower = 'as the vocabulary requires, false for cased ones; default: true'
  group.add_argument('--do_lower_case', choices=('true', 'false'), help=lower)
  fields = 'the columns of the one or two texts, or of the words; default: found by their names, such as text'
  group.add_argument('--text_fields', type=_column_names, metavar='NAME,NAME', help=fields)
  label = 'the column of the label or the tags; default: found by its name, such as label'
  group.add_argument('--label_field', metavar='NAME', help=label)
  stride = 'tokens between the beginnings of the parts of a long context; default: 128'
  group.add_argument('--doc_stride', type=arguments_lib.at_least(1), metavar='N', help=stride)
  query = 'the largest number of tokens of a question; default: 64'
  group.add_argument('--query_length', type=arguments_lib.at_least(1), metavar='N', help=query)


def annotated_text_conversion(
  known: argparse.Namespace, settings: planning.Settings, others: tuple[str, ...]
) -> bert_conversion.BertConversion:
  """The conversion that the flags define, its input read.

  Args:
    known: the parsed arguments; `seq_length` is taken out of them.
    settings: of the shards.
    others: flags of other targets, which are refused.

  Raises:
    UserError: of the flags or the input.
  """
  flags = given_flags(known, TEXT_FLAGS, others)
  if 'vocab_file' not in flags:
    raise errors.UserError(f'--vocab_file: --for={known.target} requires the vocab.txt of a BERT checkpoint')
  inputs = inputs_by_split(flags, conversions.matching_paths(known.inputs))
  labels = tuple(conversions.read_labels(flags.pop('labels'))) if 'labels' in flags else ()
  reading = bert_conversion.Reading(flags.pop('text_fields', ()), flags.pop('label_field', ''), labels)
  vocab_file = flags.pop('vocab_file')
  flags['do_lower_case'] = flags.get('do_lower_case', 'true') == 'true'
  flags['seq_length'] = known.seq_length or bert_targets.SEQ_LENGTHS[known.target]
  known.seq_length = None
  least = flags.get('query_length', 64) + 4 if known.target == bert_targets.QUESTIONS else 4
  if flags['seq_length'] < least:
    raise errors.UserError(f'--seq_length: {flags["seq_length"]}: expected {least} or more')
  conversion = bert_targets.Conversion(target=known.target, **flags)
  found = bert_conversion.BertConversion(inputs, conversion, settings, reading, vocab_file)
  warn_of_unused_shares(flags, found.named_splits)
  return found


def print_annotated_text_summary(
  conversion: bert_conversion.BertConversion, done: preparing.Prepared, output: str
) -> None:
  """Prints counts, losses, and the command that trains."""
  for line in (*conversion.warnings(), *done.report.warnings(output, '--')):
    print(f'warning: {line}')
  counts = {split: values['examples'] for split, values in conversion.report['splits'].items()}
  experiment, checkpoint = bert_targets.EXPERIMENTS[done.plan.kind], '--set=task.init_checkpoint=CHECKPOINT'
  hint = ', from a checkpoint of BERT with this vocabulary'
  print_split_summary(done, output, 'example', counts, experiment, checkpoint, hint=hint)


def _column_names(text: str) -> tuple[str, ...]:
  found = tuple(name.strip() for name in text.split(','))
  if not all(found) or len(found) > 2:
    raise argparse.ArgumentTypeError(f'{text}: expected one or two names of columns')
  return found


_TARGETS = (*image_set.TARGETS, *bert_targets.TARGETS)
_ROW_FIELDS = (*text_formats.OF_ROWS, 'label_column')
_ENDING = 'ending; shards that are done stay, and the same command resumes. A second SIGTERM or SIGINT stops at once.'


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext prepare',
    'Writes shards into the folder OUTPUT by several processes: of ArrayRecord, or with --for of TFRecord. The same '
    'command resumes a preparation that has ended or was killed, and verifies its shards. docs/how_to/prepare.md.',
  )
  found.add_argument(
    'inputs',
    metavar='INPUT',
    nargs='+',
    help='a file of JSON lines, JSON, Parquet or Arrow, a folder of such files, a folder of `datasets` (save_to_disk), '
    'a folder of images with a subfolder for each class, or a pattern; with --for: annotated images',
  )
  found.add_argument('output', metavar='OUTPUT', type=arguments_lib.tensorflow_folder, help='the folder of the shards')
  found.add_argument('--split', default='', metavar='NAME', help='the part of a folder with several')
  size = 'the approximate amount of input of a shard; default: 64MB'
  found.add_argument('--shard_size', default='64MB', metavar='SIZE', help=size)
  bad = (
    'skip: leave out and count examples that cannot be used; default: error, which names the first; with --for: skip'
  )
  found.add_argument('--on_bad_example', choices=bad_examples.ACTIONS, help=bad)
  workers = 'the number of processes; default: the number of cores'
  found.add_argument('--workers', type=arguments_lib.at_least(1), metavar='N', help=workers)
  engine = "ray: tasks of Ray on machines that share the folders: pip install 'official-ext[ray]'"
  found.add_argument('--engine', choices=('local', 'ray'), default='local', help=engine)
  found.add_argument('--ray_address', default='', metavar='ADDRESS', help='of the Ray cluster')
  json_output.add_flag(found)
  of_model_garden = found.add_argument_group('for experiments of Model Garden (docs/how_to/prepare_images.md)')
  target = (
    f'the task, one of {", ".join(_TARGETS)}: writes TFRecord files, label names and settings for an experiment of '
    'Model Garden'
  )
  of_model_garden.add_argument('--for', dest='target', choices=_TARGETS, metavar='TARGET', help=target)
  add_split_arguments(of_model_garden)
  add_image_arguments(found.add_argument_group('for images (docs/how_to/own_images.md)'))
  add_annotated_text_arguments(found.add_argument_group('for BERT (docs/how_to/prepare_texts.md)'))
  _add_text_arguments(
    found.add_argument_group('texts become rows of tokens for task.train_data (docs/how_to/text_data.md)')
  )
  return found


def _add_text_arguments(found: Any) -> None:
  tokenizer = "the tokenizer's folder, such as a model's"
  found.add_argument('--tokenizer', type=arguments_lib.tensorflow_folder, metavar='FOLDER', help=tokenizer)
  template = "a chat template in Jinja, instead of the folder's"
  found.add_argument('--chat_template_path', metavar='FILE', help=template)
  for name in _ROW_FIELDS:
    default = getattr(text_formats.TextFields, name)
    how: dict[str, Any] = {'choices': token_rows.CHOICES.get(name)}
    if isinstance(default, bool):
      how = {'choices': ('true', 'false')}
    elif isinstance(default, int):
      how = {'type': arguments_lib.at_least(2 if name == 'seq_length' else 0)}
    found.add_argument(f'--{name}', **how, help=f'default: {str(default or "none").lower()}')


def run(arguments: list[str]) -> None:
  """Runs `official-ext prepare ARGUMENTS`.

  Raises:
    UserError: with the flag, or the file and line.
    StorageError: the output cannot be written.
    PreemptedError: it was preempted.
  """
  known = _parser().parse_args(arguments)
  settings = planning.Settings(
    split=known.split,
    shard_bytes=arguments_lib.size_of(known.shard_size, '--shard_size'),
    on_bad_example=known.on_bad_example or ('skip' if known.target else 'error'),
  )
  output = os.path.expanduser(known.output)
  if paths.is_remote(output):
    raise errors.UserError(f'{output}: shards are written to local or mounted disks; copy them from there')
  if known.ray_address and known.engine != 'ray':
    raise errors.UserError('--ray_address: is for --engine=ray')

  def make_engine(num_shards):
    if known.engine == 'ray':
      return engines.RayEngine(known.ray_address, known.workers or 0)
    del num_shards  # One shard may be divided.
    return engines.LocalEngine(known.workers or engines.num_cores())

  conversion = _conversion(known, settings)
  text = _text_settings(known)
  row_format = token_rows.TokenRows(text, _tokenizer(known)) if text else None
  with signals.PreemptionWatch(_ENDING) as watch, terminal_row.ProgressRow(sys.stdout) as row:
    stopped_by = lambda: watch.requested
    report = (row.print, stopped_by, row.show)
    if conversion is not None:
      done = preparing.prepare_plan(conversion.plan, known.inputs, output, make_engine, conversion, *report)
    else:
      done = preparing.prepare(known.inputs, output, settings, make_engine, row_format, *report)
  if isinstance(conversion, bert_conversion.BertConversion):
    print_annotated_text_summary(conversion, done, output)
  elif conversion is not None:
    print_image_summary(conversion, done, output)
  else:
    _print_summary(done, output)
  if known.json:
    json_output.print_document(
      {
        'output': output,
        'kind': done.plan.kind if conversion is None else known.target,
        'rows': done.rows,
        'bytes': done.num_bytes,
        'shards': len(done.plan.shards),
        'existing_shards': done.num_there,
        'config_file': done.config_path,
        'balance': list(done.balance),
      }
    )


def _conversion(
  known: argparse.Namespace, settings: planning.Settings
) -> converting.Conversion | bert_conversion.BertConversion | None:
  """The conversion for --for; None without it."""
  if known.target is None:
    for name in (*SPLIT_FLAGS, *IMAGE_FLAGS, *TEXT_FLAGS):
      if getattr(known, name) is not None:
        raise errors.UserError(f'--{name}: needs --for={"|".join(_TARGETS)}')
    return None
  if known.tokenizer:
    raise errors.UserError(f'--tokenizer: has no meaning for --for={known.target}')
  if known.target in bert_targets.TARGETS:
    return annotated_text_conversion(known, settings, IMAGE_FLAGS)
  return image_conversion(known, settings, TEXT_FLAGS)


def _text_settings(known: argparse.Namespace) -> text_formats.TextFields | None:
  given: dict[str, Any] = {name: getattr(known, name) for name in _ROW_FIELDS if getattr(known, name) is not None}
  if known.tokenizer is None:
    wrong = [*given, *(['chat_template_path'] if known.chat_template_path else [])]
    if wrong:
      raise errors.UserError(f'--{wrong[0]}: says how texts become rows of tokens; --tokenizer=FOLDER is needed for it')
    return None
  example_format = given.get('example_format')
  if given.get('packing', 'none') != 'none' and example_format in text_formats.ONE_EACH:
    raise errors.UserError(
      f'--packing: {given["packing"]}: rows of --example_format={example_format} hold one example each'
    )
  if 'label_column' in given and example_format != 'unpaired':
    raise errors.UserError('--label_column: is for --example_format=unpaired')
  flags = {'true': True, 'false': False}
  for name in {'append_eos', 'use_chat_template'} & set(given):
    given[name] = flags[given[name]]
  return text_formats.TextFields(**given)


def _tokenizer(known: argparse.Namespace) -> Any:
  """The tokenizer and the chat template that the flags name."""
  from official_ext.language.text import chat_templates  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  found = tokenizer_lib.Tokenizer.load(os.path.expanduser(known.tokenizer))
  if not known.chat_template_path:
    return found
  return found.with_chat_template(chat_templates.read(known.chat_template_path, '--chat_template_path'))


def _print_summary(done: preparing.Prepared, output: str) -> None:
  report, plan, counted = done.report, done.plan, counted_noun
  for line in report.warnings(output, '--'):
    print(f'warning: {line}')
  print_balance(done)
  there = f', {done.num_there} of which existed' if done.num_there else ''
  what = {
    'texts': f'{counted(done.rows, "row")} of {plan.settings.get("seq_length")} tokens '
    f'from {counted(report.records, "record")}',
    'images': f'{counted(done.rows, "image")} of {counted(len(plan.labels), "class", "classes")}',
    'records': counted(done.rows, 'record'),
  }[plan.kind]
  print(f'{output}: {what}, {done.num_bytes} bytes in {counted(len(plan.shards), "shard")}{there}')
  if plan.kind == 'texts':
    print(f'{report.tokens} tokens, {report.learned_tokens} to learn; to train on them:')
    print(f'  {shlex.quote("--config_file=" + done.config_path)}')
  else:
    print('To train on them, in the task:')
    print('  source = ext.PreparedRows(params.input_path)')
    print('and in its configuration, or on the command line:')
    print(f'  {shlex.quote("--set=task.train_data.input_path=" + os.path.abspath(output))}')
