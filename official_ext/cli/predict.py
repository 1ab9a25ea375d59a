"""official-ext predict: the outputs of a SavedModel for values or pictures."""

import base64
import json
import os
import sys

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import export_notes
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import language_models


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext predict', 'Prints the outputs of a SavedModel as JSON; without inputs its signatures.'
  )
  found.add_argument('folder', metavar='FOLDER', type=arguments_lib.tensorflow_folder, help='the SavedModel')
  found.add_argument(
    '--input',
    action='append',
    default=[],
    metavar='NAME=VALUES',
    help=f'a tensor as JSON, such as pixels=[[0.5,1]]; {arguments_lib.REPEATED}; the batch dimension may be left out',
  )
  found.add_argument(
    '--image',
    action='append',
    default=[],
    metavar='NAME=FILE',
    help="a tensor from a PNG, JPEG, GIF or BMP, resized to the signature's size",
  )
  found.add_argument(
    '--range',
    choices=('0..255', '0..1', '-1..1'),
    help='of pixels in floats; default: that of export.json, or else 0..255',
  )
  found.add_argument('--signature', metavar='NAME', help='default: serving_default')
  language_models.add_load_in_4bit(found, 'the expected base of a language model; another than the exported is refused')
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext predict ARGUMENTS`.

  Raises:
    UserError: with the flag, or the input.
  """
  known = _parser().parse_args(arguments)
  folder = os.path.expanduser(known.folder)
  if not os.path.isfile(os.path.join(folder, 'saved_model.pb')):
    raise errors.UserError(f'{folder}: is not a SavedModel; `official-ext export RUN` writes one')
  _check_base(folder, known.load_in_4bit)
  inputs: dict[str, dict[str, object]] = {}
  for flag, texts in (('input', known.input), ('image', known.image)):
    for text in texts:
      name, sign, value = text.partition('=')
      if not sign:
        raise errors.UserError(f'--{flag}={text}: expected NAME={"VALUES" if flag == "input" else "FILE"}')
      inputs[name] = {'text': value} if flag == 'input' else {'image': _read(value), 'range': known.range}
  from official_ext.training.trained import saved_models  # pylint: disable=g-import-not-at-top  # TensorFlow.

  model = saved_models.SavedModel(folder)
  signatures = model.signatures()
  signature = known.signature or next(iter(signatures))
  found = model.predict(signature, inputs) if inputs else signatures
  print(json.dumps(json_types.json_values(found), indent=None if inputs else 2))


def _check_base(folder: str, load_in_4bit: bool | None) -> None:
  """Refuses another base than the one that was exported, which a SavedModel holds; prints how it is kept."""
  base = export_notes.read(folder).get('base')
  quantization = base.get('quantization') if isinstance(base, dict) else None
  method = quantization.get('method', 'none') if isinstance(quantization, dict) else 'none'
  kept = f'{base.get("frozen_dtype")} weights' if isinstance(base, dict) and method == 'none' else f'{method} weights'
  if load_in_4bit not in (None, method == 'nf4'):
    held = f'holds {kept}' if isinstance(base, dict) else 'holds no weights in 4 bits'
    raise errors.UserError(
      f'--load_in_4bit={str(load_in_4bit).lower()}: {folder} {held}, as the run was exported, and stays so; '
      '`official-ext generate ADAPTER` takes another base'
    )
  if isinstance(base, dict):
    print(f'base: {kept} of {base.get("folder")}', file=sys.stderr)


def _read(path: str) -> str:
  try:
    with open(os.path.expanduser(path), 'rb') as file:
      return base64.b64encode(file.read()).decode()
  except OSError as error:
    raise errors.UserError(f'--image: {path}: cannot be read: {error.strerror}') from None
