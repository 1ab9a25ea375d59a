"""official-ext convert: a Hugging Face folder of another one, of adapters and their base, or of a run."""

import os
import re
import sys
from typing import Any

from official_ext import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import language_models
from official_ext.files import paths
from official_ext.modeling import model_folders

_SIZE = re.compile(r'(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?', re.IGNORECASE)
_RUN = 'params.yaml'
_OF_RUNS = ('which', 'experiment')


def _parser() -> arguments_lib.Parser:
  """The arguments of `official-ext convert`; usage.py explains them."""
  found = arguments_lib.Parser('convert')
  found.add_argument('source', metavar='SOURCE', type=arguments_lib.folder)
  found.add_argument('target', metavar='TARGET', type=arguments_lib.folder)
  found.add_argument('--adapter', type=arguments_lib.folder)
  found.add_argument('--base_model', type=arguments_lib.folder)
  found.add_argument('--tokenizer', type=arguments_lib.folder)
  found.add_argument('--dtype', choices=language_models.DTYPES)
  found.add_argument('--max_shard_size', default='5GB')
  arguments_lib.add_run_arguments(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext convert ARGUMENTS`.

  Raises:
    UserError: with the flag, file or field. Nothing was written.
  """
  known = _parser().parse_args(arguments)
  source, target = os.path.expanduser(known.source), os.path.expanduser(known.target)
  max_shard_bytes = size_of(known.max_shard_size)
  paths.refuse_used(target)
  is_run = os.path.isfile(os.path.join(source, _RUN))
  folders = None
  if is_run:
    _refuse(known, ('base_model',), 'the model of a run')
  else:
    _refuse(known, _OF_RUNS, f'{source}, which is not the folder of a run')
    folders = model_folders.find(source, known.base_model, known.adapter)
  tokenizer_folder = known.tokenizer or (folders.tokenizer if folders is not None else None)
  tokenizer = _tokenizer(tokenizer_folder, is_needed=known.tokenizer is not None)
  if folders is not None:
    model = language_models.load(folders, 'bfloat16' if _may_be_bfloat16(folders, known.dtype) else None)
  else:
    model = _of_run(known, source)
  from official_ext.fine_tuning import result_folders  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.modeling import pretrained  # pylint: disable=g-import-not-at-top

  dtype = known.dtype or _told_dtype(model)
  save = lambda folder: pretrained.save(model, folder, dtype, max_shard_bytes, tokenizer=tokenizer)
  result_folders.write(target, save, replace=False)
  print(f'Converted {source} to {target}: {model.config.model_type}, {dtype}')


def size_of(text: str) -> int:
  """The number of bytes that a text such as 5GB, 200MB or 4GiB stands for.

  Raises:
    UserError: it stands for none.
  """
  match = _SIZE.fullmatch(text.strip())
  size = float(match[1]) * (1024 if match[3] else 1000) ** ' KMGT'.index(match[2].upper() or ' ') if match else 0
  if size < 1:
    raise errors.UserError(f'--max_shard_size={text}: expected a size such as 5GB, 200MB or 4GiB')
  return int(size)


def _refuse(known: Any, names: tuple[str, ...], what: str) -> None:
  for name in names:
    if getattr(known, name) is not None:
      raise errors.UserError(f'--{name}: has no meaning for {what}')


def _tokenizer(folder: str | None, is_needed: bool) -> Any:
  """The tokenizer of a folder; None if it has none, and none is needed."""
  from official_ext.data import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  if folder is None or not (is_needed or os.path.isfile(os.path.join(folder, 'tokenizer.json'))):
    return None
  return tokenizer_lib.Tokenizer.load(os.path.expanduser(folder))


def _may_be_bfloat16(folders: model_folders.ModelFolders, dtype: str | None) -> bool:
  """Whether the weights need not be in memory in float32: they end in bfloat16, and nothing is computed with them."""
  if folders.adapter:
    return False
  from official_ext.modeling import pretrained  # pylint: disable=g-import-not-at-top

  _, fields = pretrained.read_config(folders.model)
  return (dtype or fields.get('dtype') or fields.get('torch_dtype')) == 'bfloat16'


def _told_dtype(model: Any) -> str:
  """What the folder that a model is from says about its dtype, as transformers' dtype='auto' has it; else float32."""
  fields = {} if model.origin is None else model.origin.fields
  told = fields.get('dtype') or fields.get('torch_dtype')
  return told if told in language_models.DTYPES else 'float32'


def _of_run(known: Any, model_dir: str) -> Any:
  """The language model that a run has trained, with its adapters merged."""
  from official_ext.cli import flags as ext_flags  # pylint: disable=g-import-not-at-top
  from official_ext.cli import trained_runs  # pylint: disable=g-import-not-at-top
  from official_ext.modeling import decoder  # pylint: disable=g-import-not-at-top
  from official_ext.modeling import lora  # pylint: disable=g-import-not-at-top
  from official_ext.modeling import peft_folders  # pylint: disable=g-import-not-at-top

  ext_flags.define_flags()
  if sys.path[0] != os.getcwd():
    sys.path.insert(0, os.getcwd())
  trained = trained_runs.load_run(model_dir, known.which, known.ema == 'true', known.experiment, known.registry)
  model = trained.model
  if not isinstance(model, decoder.LanguageModel):
    raise errors.UserError(
      f'{model_dir}: the model of this run is a {type(model).__name__}, which Hugging Face has no folder for (a '
      'LanguageModel has one); `official-ext export` writes it as a SavedModel'
    )
  if known.adapter is not None:
    peft_folders.load(model, os.path.expanduser(known.adapter))
  lora.merge(model)
  print(f'{trained.checkpoint} ({trained.weights} weights)', file=sys.stderr)
  return model
