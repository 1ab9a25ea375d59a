"""official-ext convert: writes a run, a folder, or adapters and their base as a Hugging Face folder or a GGUF file."""

import argparse
import gc
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base import protocols
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.data import config_fields
from official_ext.language.serving import model_loading
from official_ext.training.devices import signals

if TYPE_CHECKING:
  from official_ext.language.text import tokenizer as tokenizer_lib

_OF_RUNS = ('which', 'experiment')
_OF_FOLDERS = ('base_model', 'load_in_4bit')
_Q8_0 = 'q8_0'


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext convert',
    'Writes a Hugging Face folder, which transformers also loads, or a GGUF file for llama.cpp. The model of a folder '
    'or a run is a LanguageModel or a classifier (...ForSequenceClassification). A run with custom layers, or with '
    'weights beside the decoder and its head, is refused. The folder of a run is loaded again, and its logits are '
    'compared.',
  )
  source = 'a Hugging Face folder, one of peft with adapters, which are merged into their base, or the folder of a run'
  found.add_argument('source', metavar='SOURCE', type=arguments_lib.tensorflow_folder, help=source)
  found.add_argument(
    'target', metavar='TARGET', type=arguments_lib.tensorflow_folder, help='the folder or file to write'
  )
  kinds = 'huggingface: a folder; gguf: a file of weights, metadata and tokenizer; default: huggingface'
  found.add_argument('--to', choices=('huggingface', 'gguf'), default='huggingface', help=kinds)
  adapter = f'a folder of peft with adapters for SOURCE, which are merged into it; {arguments_lib.REPEATED}'
  found.add_argument(
    '--adapter', action='append', default=[], metavar='FOLDER', type=arguments_lib.tensorflow_folder, help=adapter
  )
  weights = 'the weight of each --adapter, such as 0.7,0.3; default: 1 for each'
  found.add_argument('--adapter_weights', metavar='NUMBERS', type=_numbers, help=weights)
  kinds = "how several are combined, as by peft's add_weighted_adapter: cat adds their products, linear their matrices"
  found.add_argument('--combination_type', choices=('cat', 'linear'), default='cat', help=f'{kinds}; default: cat')
  arguments_lib.add_base_model(found)
  tokenizer = 'its tokenizer is copied; default: that of the adapters, the model or the run'
  found.add_argument('--tokenizer', metavar='FOLDER', type=arguments_lib.tensorflow_folder, help=tokenizer)
  dtype = f"{_Q8_0}: 8 bits, --to=gguf alone; default: as in SOURCE's config.json, or else float32"
  found.add_argument('--dtype', choices=(*arguments_lib.DTYPES, _Q8_0), help=dtype)
  arguments_lib.add_load_in_4bit(found, 'merge adapters into weights in 4 bits (NF4); default: as they were trained')
  size = 'the largest file of weights, such as 200MB or 4GiB; default: 5GB'
  found.add_argument('--max_shard_size', default='5GB', metavar='SIZE', help=size)
  arguments_lib.add_run_arguments(found.add_argument_group('of a run'))
  json_output.add_flag(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext convert ARGUMENTS`.

  Raises:
    UserError: with the flag, file or field. Nothing was written.
  """
  known = _parser().parse_args(arguments)
  with signals.interrupting(), tempfile.TemporaryDirectory(prefix='convert-') as folder:
    known.adapter = _one_adapter(known, folder)
    found = _convert(known)
  if known.json:
    json_output.print_document(found)


def _numbers(text: str) -> list[float]:
  try:
    return [float(part) for part in text.split(',')]
  except ValueError:
    raise argparse.ArgumentTypeError(f'{text}: expected numbers, such as 0.7,0.3') from None


def _one_adapter(known: argparse.Namespace, folder: str) -> str | None:
  """The folder of the adapter to merge. Several adapters, or one with a weight, are combined in `folder`."""
  weights = known.adapter_weights
  if weights is not None and len(weights) != len(known.adapter):
    raise errors.UserError(
      f'--adapter_weights: {len(weights)} for {len(known.adapter)} --adapter; expected one for each'
    )
  if len(known.adapter) < 2 and weights is None:
    return known.adapter[0] if known.adapter else None
  from official_ext.language.modeling import adapter_sets  # pylint: disable=g-import-not-at-top  # TensorFlow.

  adapter_sets.combine(known.adapter, weights or [1.0] * len(known.adapter), folder, known.combination_type)
  return folder


def _convert(known: Any) -> json_values.JsonObject:
  """Converts; returns {source, target, model_type, dtype}."""
  source, target = paths.expanded(known.source), paths.expanded(known.target)
  max_shard_bytes = arguments_lib.size_of(known.max_shard_size, '--max_shard_size')
  _check_target(known, target)
  is_run = paths.is_file(os.path.join(source, model_folders.RUN_FILE))
  folders = None
  if is_run:
    _refuse(known, _OF_FOLDERS, 'the model of a run')
  else:
    _refuse(known, _OF_RUNS, f'{source}, which is not the folder of a run')
    folders = model_folders.find(source, known.base_model, known.adapter)
    if not folders.adapter:
      _refuse(known, ('load_in_4bit',), f'{source}, which has no adapters to train on 4-bit weights')
  tokenizer_folder = known.tokenizer or (folders.tokenizer if folders is not None else None)
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top  # TensorFlow.

  tokenizer = _tokenizer(tokenizer_folder, is_needed=known.tokenizer is not None)
  if folders is not None:
    if known.tokenizer is not None:  # Before the weights are loaded.
      _check_tokenizer(known, tokenizer, pretrained.read_config(folders.model)[0])
    kept = 'bfloat16' if _may_be_bfloat16(folders, known.dtype) else 'float32'
    model = _of_folders(folders, kept, known.load_in_4bit)
  else:
    model, task = _of_run(known, source)
    if tokenizer is None:
      tokenizer = _tokenizer_of_task(task)
    else:
      _check_tokenizer(known, tokenizer, model.config)
  dtype = known.dtype or _declared_dtype(model)
  if known.to == 'gguf':
    _write_gguf(model, target, dtype, tokenizer, os.path.basename(os.path.abspath(source)))
    print(f'Converted {source} to {target}: {model.config.model_type}, {dtype}')
    return {'source': source, 'target': target, 'model_type': model.config.model_type, 'dtype': dtype}
  from official_ext.base.files import whole_folders  # pylint: disable=g-import-not-at-top  # TensorFlow.

  model_type, origin = model.config.model_type, model.origin
  has_tokenizer = tokenizer is not None or (origin is not None and model_folders.TOKENIZER_FILE in origin.files)
  models = [model]
  del model  # It is read back when the first one is gone.
  save = lambda folder: _save(models, folder, dtype, max_shard_bytes, tokenizer, is_compared=is_run)
  whole_folders.write(target, save, replace=False)
  if not has_tokenizer:
    print('no tokenizer went along: there is none beside the weights; --tokenizer=FOLDER names one', file=sys.stderr)
  print(f'Converted {source} to {target}: {model_type}, {dtype}')
  return {'source': source, 'target': target, 'model_type': model_type, 'dtype': dtype}


def _check_target(known: argparse.Namespace, target: str) -> None:
  """Refuses a target that exists, and flags of the other kind."""
  if known.to == 'huggingface':
    if known.dtype == _Q8_0:
      raise errors.UserError(f'--dtype={_Q8_0}: no Hugging Face folder has it; set --to=gguf')
    paths.refuse_used(target)
    return
  if paths.is_remote(target):
    raise errors.UserError(f'{target}: GGUF files are written to a local disk')
  if os.path.lexists(target):
    raise errors.UserError(f'{target}: exists already; name a file that does not')
  if not os.path.isdir(os.path.dirname(os.path.abspath(target))):
    raise errors.UserError(f'{target}: its folder does not exist; make it first')
  package_imports.import_optional('gguf', '--to=gguf', 'gguf')  # Before anything is loaded.


def _write_gguf(model: Any, target: str, dtype: str, tokenizer: 'tokenizer_lib.Tokenizer | None', name: str) -> None:
  """Writes the GGUF file of a language model, with its tokenizer."""
  from official_ext.language.modeling import decoder  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import gguf_files  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  if not isinstance(model, decoder.LanguageModel):
    raise errors.UserError('--to=gguf: the model is a classifier; GGUF files are written of language models')
  pretrained.check_representable(model, target)
  if tokenizer is None:
    raise errors.UserError('--to=gguf: found no tokenizer beside the weights; name one with --tokenizer=FOLDER')
  gguf_files.write(model, target, tokenizer.beside(model.config.model_type), dtype, name)
  context = gguf_files.context_length(model.config)
  if context < model.config.max_position_embeddings:
    print(f'context_length: {context}, the window of the model: llama.cpp has no windows for it', file=sys.stderr)


def _save(
  models: list[Any],
  folder: str,
  dtype: str,
  max_shard_bytes: int,
  tokenizer: 'tokenizer_lib.Tokenizer | None',
  is_compared: bool,
) -> None:
  """Writes a model, and compares the model read back with it.

  Args:
    models: the model alone; it is removed, so that one is in memory at a time.
    folder: an empty folder.
    dtype: see `pretrained.save`, as the next two.
    max_shard_bytes: of a file.
    tokenizer: the tokenizer to write with it.
    is_compared: whether it is read back: the builder of a run's model is not known here.
  """
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  pretrained.save(models[0], folder, dtype, max_shard_bytes, tokenizer=tokenizer)
  if is_compared:
    expected = pretrained.probe(models.pop(), dtype)
    gc.collect()
    pretrained.check_read_back(expected, folder)


def _refuse(known: object, names: tuple[str, ...], what: str) -> None:
  for name in names:
    if getattr(known, name) is not None:
      raise errors.UserError(f'--{name}: has no meaning for {what}')


def _tokenizer(folder: str | None, is_needed: bool) -> 'tokenizer_lib.Tokenizer | None':
  """The tokenizer of a folder; None if it has none, and none is needed."""
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  if folder is None or not (is_needed or paths.is_file(os.path.join(folder, model_folders.TOKENIZER_FILE))):
    return None
  return tokenizer_lib.Tokenizer.load(paths.expanded(folder))


def _tokenizer_of_task(task: protocols.Task) -> 'tokenizer_lib.Tokenizer | None':
  """The tokenizer of a run, with the chat template of its training; None if the run has not reported one.

  Of a fine-tuning it stops where the answers of the training data end, if those are still there.
  """
  from official_ext.language.fine_tuning import task as fine_tuning  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import text_sources  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  if isinstance(task, fine_tuning.FineTuningTask):
    try:
      return task.result_tokenizer
    except errors.UserError as error:
      print(f'the ends of the answers are not known: {errors.lines_of(error)[0]}', file=sys.stderr)
  found: object = getattr(task, 'tokenizer', None)
  data = config_fields.of_task(task.task_config).train_data
  if not isinstance(found, tokenizer_lib.Tokenizer):
    return None
  return text_sources.tokenizer_of(data, found) if hasattr(data, 'chat_template_path') else found


def _check_tokenizer(known: argparse.Namespace, tokenizer: Any, config: Any) -> None:
  """Refuses the tokenizer of --tokenizer if it does not fit the configuration of a model."""
  hint, size = f'; without --tokenizer that of {known.source} is used', config.vocab_size
  if len(tokenizer) > size:
    raise errors.UserError(
      f'--tokenizer={known.tokenizer}: has {len(tokenizer)} tokens, and the model {size} (vocab_size){hint}'
    )
  try:
    tokenizer.beside(config.model_type)
  except errors.UserError as error:
    raise errors.UserError(f'--tokenizer={known.tokenizer}: {error}{hint}') from error


def _may_be_bfloat16(folders: model_folders.ModelFolders, dtype: str | None) -> bool:
  """Whether the weights need not be in memory in float32: they end in bfloat16, and nothing is computed with them."""
  if folders.adapter:
    return False
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  _, fields = pretrained.read_config(folders.model)
  return (dtype or fields.get('dtype') or fields.get('torch_dtype')) == 'bfloat16'


def _declared_dtype(model: Any) -> str:
  """The dtype in a model's folder, as for transformers' dtype='auto'; float32 by default."""
  fields = {} if model.origin is None else model.origin.fields
  declared = fields.get('dtype') or fields.get('torch_dtype')
  return declared if declared in arguments_lib.DTYPES else 'float32'


def _of_folders(folders: model_folders.ModelFolders, dtype: str, load_in_4bit: bool | None) -> Any:
  """The language model of a folder, with adapters merged into it; or its classifier."""
  from official_ext.language.modeling import lora  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  num_labels = None if folders.adapter else pretrained.num_labels(folders.model)
  if num_labels is None:
    model = model_loading.load(folders, dtype, load_in_4bit)
    lora.merge(model)
    return model
  return pretrained.load_classifier(folders.model, num_labels, dtype=dtype)


def _of_run(known: argparse.Namespace, model_dir: str) -> tuple[Any, Any]:
  """(the language model or classifier that a run has trained, with its adapters merged; the task of the run)."""
  from official_ext.cli import flags as ext_flags  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import decoder  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import lora  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import peft_folders  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  ext_flags.define_for_command()
  trained = trained_model.load_run(model_dir, known.which, known.ema == 'true', known.experiment, known.registry)
  model = trained.model
  is_classifier = isinstance(model, decoder.SequenceClassifier)
  if not is_classifier and not isinstance(model, decoder.LanguageModel):
    raise errors.UserError(
      f'{model_dir}: the model of this run is a {type(model).__name__}, which Hugging Face has no folder for (a '
      'LanguageModel and a SequenceClassifier have one); `official-ext export` writes it as a SavedModel'
    )
  pretrained.check_representable(model, model_dir)  # Merging makes layers of this library's classes of others.
  if known.adapter is not None:
    if is_classifier:
      raise errors.UserError('--adapter: adapters of a folder are for a language model, and this run has a classifier')
    peft_folders.load(model, paths.expanded(known.adapter))
  print(f'{trained.checkpoint} ({trained.weights} weights)', file=sys.stderr)
  if lora.adapters(model):
    print(f'base: {peft_folders.base_record_of(model, has_digest=False).describe()}', file=sys.stderr)
  lora.merge(model)
  return model, trained.task
