"""official-ext prepare: shards of files of texts, records or images, which training reads at once. No TensorFlow."""

import argparse
import os
import shlex
from typing import Any

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import prepare_images
from official_ext.cli import prepare_splits
from official_ext.cli import prepare_texts
from official_ext.data import bad_examples
from official_ext.data.prepare import local_engine
from official_ext.data.prepare import preparing
from official_ext.data.prepare import ray_engine
from official_ext.data.prepare import settings as settings_lib
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows
from official_ext.training.devices import preemption
from official_ext.vision.conversion import converting
from official_ext.vision.conversion import targets

_TARGETS = (*targets.TARGETS, *bert_targets.TARGETS)
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
  of_model_garden = found.add_argument_group('for experiments of Model Garden (docs/how_to/prepare_images.md)')
  target = (
    f'the task, one of {", ".join(_TARGETS)}: writes TFRecord files, label names and settings for an experiment of '
    'Model Garden'
  )
  of_model_garden.add_argument('--for', dest='target', choices=_TARGETS, metavar='TARGET', help=target)
  prepare_splits.add_arguments(of_model_garden)
  prepare_images.add_arguments(found.add_argument_group('for images (docs/how_to/own_images.md)'))
  prepare_texts.add_arguments(found.add_argument_group('for BERT (docs/how_to/prepare_texts.md)'))
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
  settings = settings_lib.Settings(
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
      return ray_engine.RayEngine(known.ray_address, known.workers or 0)
    return local_engine.LocalEngine(min(known.workers or local_engine.num_cores(), max(1, num_shards)))

  conversion = _conversion(known, settings)
  text = _text_settings(known)
  row_format = token_rows.TokenRows(text, _tokenizer(known)) if text else None
  show = lambda line: print(line, flush=True)
  with preemption.PreemptionWatch(_ENDING) as watch:
    stopped_by = lambda: watch.requested
    if conversion is not None:
      done = preparing.prepare_plan(conversion.plan, known.inputs, output, make_engine, conversion, show, stopped_by)
    else:
      done = preparing.prepare(known.inputs, output, settings, make_engine, row_format, show, stopped_by)
  if isinstance(conversion, bert_conversion.Conversion):
    prepare_texts.print_summary(conversion, done, output)
  elif conversion is not None:
    prepare_images.print_summary(conversion, done, output)
  else:
    _print_summary(done, output)


def _conversion(
  known: argparse.Namespace, settings: settings_lib.Settings
) -> converting.Conversion | bert_conversion.Conversion | None:
  """The conversion for --for; None without it."""
  if known.target is None:
    for name in (*prepare_splits.FLAGS, *prepare_images.FLAGS, *prepare_texts.FLAGS):
      if getattr(known, name) is not None:
        raise errors.UserError(f'--{name}: needs --for={"|".join(_TARGETS)}')
    return None
  if known.tokenizer:
    raise errors.UserError(f'--tokenizer: has no meaning for --for={known.target}')
  if known.target in bert_targets.TARGETS:
    return prepare_texts.conversion_of(known, settings, prepare_images.FLAGS)
  return prepare_images.conversion_of(known, settings, prepare_texts.FLAGS)


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
  """The tokenizer that is named, with the chat template that is."""
  from official_ext.language.text import chat_templates  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  found = tokenizer_lib.Tokenizer.load(os.path.expanduser(known.tokenizer))
  if not known.chat_template_path:
    return found
  return found.with_chat_template(chat_templates.read(known.chat_template_path, '--chat_template_path'))


def _print_summary(done: preparing.Prepared, output: str) -> None:
  report, plan, counted = done.report, done.plan, prepare_splits.counted
  for line in report.warnings(output, '--'):
    print(f'warning: {line}')
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
