"""official-ext evaluate, predict, generate, chat: the results of a model. TensorFlow is imported late."""

import argparse
import base64
from collections.abc import Sequence
import dataclasses
import importlib
import io
import json
import os
import re
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.language.serving import model_loading
from official_ext.language.text import bert_targets
from official_ext.training.devices import signals
from official_ext.vision.conversion import image_set

if TYPE_CHECKING:
  from official_ext.language.modeling import adapter_sets
  from official_ext.language.text import tokenizer as tokenizer_lib
  from official_ext.training.config import definitions
  from official_ext.training.evaluation import evaluated_data as evaluated_data_lib


_GENERATION_HELP = {
  'temperature': "0: the likeliest token; above: sampled; default: generation_config.json's, or else 0",
  'top_k': "sample from the K likeliest tokens; default: generation_config.json's",
  'top_p': 'sample from the likeliest tokens with this probability together',
  'min_p': "sample from tokens with this share of the likeliest one's probability",
  'repetition_penalty': 'as in transformers',
}


def add_generation_flags(parser: arguments_lib.Parser, length: str) -> None:
  """Adds them; `length` is the help of --max_new_tokens."""
  for name, kind in model_loading.SETTING_KINDS.items():
    metavar = 'N' if kind is int else 'X'
    parser.add_argument(
      f'--{name}', type=kind, metavar=metavar, help={'max_new_tokens': length, **_GENERATION_HELP}[name]
    )
  parser.add_argument('--seed', type=int, default=0, metavar='N', help='of the samples; default: 0')
  parser.add_argument('--chat_template_path', metavar='FILE', help="a chat template in Jinja, instead of the folder's")


def given_generation_flags(known: argparse.Namespace) -> dict[str, object]:
  """The values of `GenerationConfig`'s fields that were set.

  Raises:
    UserError: a value that means nothing.
  """
  found = {name: getattr(known, name) for name in model_loading.SETTING_KINDS if getattr(known, name) is not None}
  model_loading.check_settings(found, known.seed)
  return found


_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class _Evaluator:
  """The evaluator of a task: its module, and the targets of `prepare` that it reads."""

  module: str
  kinds: Sequence[str]


# By Model Garden's configurations of tasks.
_EVALUATORS = {
  'official.vision.configs.image_classification.ImageClassificationTask': _Evaluator(
    'official_ext.vision.evaluation.image_classes', (image_set.CLASSIFICATION,)
  ),
  'official.vision.configs.retinanet.RetinaNetTask': _Evaluator(
    'official_ext.vision.evaluation.boxes', image_set.WITH_BOXES
  ),
  'official.vision.configs.maskrcnn.MaskRCNNTask': _Evaluator(
    'official_ext.vision.evaluation.boxes', image_set.WITH_BOXES
  ),
  'official.vision.configs.semantic_segmentation.SemanticSegmentationTask': _Evaluator(
    'official_ext.vision.evaluation.pixel_classes', (image_set.SEGMENTATION,)
  ),
  'official.nlp.tasks.sentence_prediction.SentencePredictionConfig': _Evaluator(
    'official_ext.language.evaluation.text_classes', (bert_targets.CLASSIFICATION,)
  ),
}

_OF_CUSTOM_TASKS = _Evaluator('official_ext.training.evaluation.custom_tasks', ())


def _evaluate_parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext evaluate',
    "Evaluates the model of a run: of Model Garden's image classification, detection, segmentation or text "
    'classification, or of a custom regression or classification. Prints figures and the worst mistakes, and writes '
    'them with pictures into RUN/evaluations. '
    'docs/how_to/evaluate.md.',
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument('model_dir', metavar='RUN', type=kind, help='the folder of the run')
  on = 'a folder of `official-ext prepare --for`; default: the validation data of the run'
  found.add_argument('--on', metavar='FOLDER', type=kind, help=on)
  split = 'of the folder; default: validation, or else test'
  found.add_argument('--split', choices=('train', 'validation', 'test'), help=split)
  name = 'the folder in RUN/evaluations; default: FOLDER-SPLIT, or validation_data'
  found.add_argument('--name', metavar='NAME', help=name)
  number = 'how many of the worst mistakes to show; default: 16'
  found.add_argument('--mistakes', type=arguments_lib.at_least(0), default=16, metavar='N', help=number)
  arguments_lib.add_run_arguments(found)
  json_output.add_flag(found)
  return found


def run_evaluate(arguments: list[str]) -> None:
  """Runs `official-ext evaluate ARGUMENTS`.

  Raises:
    UserError: with the flag, the run or the data.
  """
  known = _evaluate_parser().parse_args(arguments)
  if known.name is not None and not re.fullmatch(r'[\w][\w.-]*', known.name):
    raise errors.UserError(f'--name={known.name}: expected letters, digits, _, . and -')
  from official_ext.cli import flags as ext_flags  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  ext_flags.define_for_command()
  with signals.interrupting():
    model_dir = paths.expanded(known.model_dir)
    from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

    _evaluate(trained_model.read_params(model_dir, known.experiment, known.registry), model_dir, known)


def _evaluate(params: 'definitions.ExperimentConfig', model_dir: str, known: argparse.Namespace) -> None:
  from official_ext.training.evaluation import evaluated_data as evaluated_data_lib  # pylint: disable=g-import-not-at-top
  from official_ext.training.evaluation import results  # pylint: disable=g-import-not-at-top
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  evaluator = _evaluator_of(params)
  on, split = known.on or '', known.split or ''
  if evaluator is _OF_CUSTOM_TASKS:
    data = importlib.import_module(evaluator.module).find_data(params, on, split)
  else:
    data = evaluated_data_lib.find(params, evaluator.kinds, params.task.model.num_classes, on, split)
  trained = trained_model.load_model(params, model_dir, known.which, known.ema == 'true')
  result = importlib.import_module(evaluator.module).evaluate(trained, data, known.mistakes)
  name = known.name or _evaluation_name(data)
  folder = os.path.join(model_dir, results.FOLDER, name)
  facts = {
    'run': paths.absolute(model_dir),
    'checkpoint': trained.checkpoint,
    'step': trained.step,
    'weights': trained.weights,
    'data': data.title,
    'input_path': str(data.config.input_path or ''),
  }
  title = f'{os.path.basename(os.path.abspath(model_dir))}: {data.title}'
  results.write_report(folder, title, facts, result, trained.step)
  print(f'{trained.checkpoint} ({trained.weights} weights) on {data.title}')
  print('  '.join(f'{name} {round(value, _DIGITS)}' for name, value in result.summary.items()))
  for table in result.tables:
    print(f'\n{table.title}')
    print('\n'.join(results.table_lines(table)))
  print('')
  pictures = f'{len(result.pictures)} picture{"s" if len(result.pictures) != 1 else ""}'
  print(f'{folder}: {results.PAGE}, {results.REPORT}, {pictures}', flush=True)
  if known.json:
    tables = [{'title': each.title, 'header': each.header, 'rows': each.rows} for each in result.tables]
    json_output.print_document({'folder': folder, **facts, 'figures': result.figures, 'tables': tables})


def _evaluator_of(params: 'definitions.ExperimentConfig') -> _Evaluator:
  names = [f'{cls.__module__}.{cls.__qualname__}' for cls in type(params.task).__mro__]
  found = next((_EVALUATORS[name] for name in names if name in _EVALUATORS), None)
  if found is not None:
    return found
  from official.core import task_factory  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  from official_ext.training.tasks import base_task  # pylint: disable=g-import-not-at-top

  if not issubclass(task_factory.get_task_cls(type(params.task)), base_task.Task):
    raise errors.UserError(
      f"task: {type(params.task).__name__} is unsupported; evaluate reads runs of Model Garden's image classification, "
      'RetinaNet, Mask R-CNN, semantic segmentation and sentence prediction, and of tasks that derive from ext.Task'
    )
  return _OF_CUSTOM_TASKS


def _evaluation_name(data: 'evaluated_data_lib.EvaluatedData') -> str:
  """The name of the folder of an evaluation, by its data."""
  if data.path != '--on':
    return 'validation_data'
  split = os.path.basename(str(data.config.input_path)).split('-')[0]
  return re.sub(r'[^\w.-]', '_', f'{os.path.basename(data.folder)}-{split}')


def _predict_parser() -> arguments_lib.Parser:
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
    help="a tensor from a PNG, JPEG, WebP, GIF or BMP, resized to the signature's size",
  )
  found.add_argument(
    '--range',
    choices=('0..255', '0..1', '-1..1'),
    help='of pixels in floats; default: that of export.json, or else 0..255',
  )
  found.add_argument('--signature', metavar='NAME', help='default: serving_default')
  arguments_lib.add_load_in_4bit(found, 'the expected base of a language model; another than the exported is refused')
  json_output.add_flag(found, 'print errors as JSON too')
  return found


def run_predict(arguments: list[str]) -> None:
  """Runs `official-ext predict ARGUMENTS`.

  Raises:
    UserError: with the flag, or the input.
  """
  known = _predict_parser().parse_args(arguments)
  folder = paths.expanded(known.folder)
  if not paths.is_file(os.path.join(folder, 'saved_model.pb')):
    raise errors.UserError(f'{folder}: is not a SavedModel; `official-ext export RUN` writes one')
  _check_base(folder, known.load_in_4bit)
  inputs: dict[str, dict[str, object]] = {}
  for flag, texts in (('input', known.input), ('image', known.image)):
    for text in texts:
      name, sign, value = text.partition('=')
      if not sign:
        raise errors.UserError(f'--{flag}={text}: expected NAME={"VALUES" if flag == "input" else "FILE"}')
      inputs[name] = {'text': value} if flag == 'input' else {'image': _read_input(value), 'range': known.range}
  from official_ext.training.trained import saved_models  # pylint: disable=g-import-not-at-top  # TensorFlow.

  model = saved_models.SavedModel(folder)
  signatures = model.signatures()
  signature = known.signature or next(iter(signatures))
  found = model.predict(signature, inputs) if inputs else signatures
  if known.json:
    json_output.print_document(found)
    return
  print(json.dumps(json_values.as_strict(found), indent=None if inputs else 2))


def _check_base(folder: str, load_in_4bit: bool | None) -> None:
  """Refuses another base than the one that was exported, which a SavedModel holds; prints how it is kept."""
  base = model_folders.read_export(folder).get('base')
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


def _read_input(path: str) -> str:
  try:
    with open(paths.expanded(path), 'rb') as file:
      return base64.b64encode(file.read()).decode()
  except OSError as error:
    raise errors.UserError(f'--image: {path}: cannot be read: {error.strerror}') from None


def _generate_parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext generate',
    'Continues a text, and prints that alone on stdout: token by token on a terminal, otherwise at the end.',
  )
  arguments_lib.add_model_arguments(found)
  several = 'a folder of peft with adapters for FOLDER; with several, a continuation of each below a line [NAME]'
  arguments_lib.add_adapters(found, several)
  add_generation_flags(found, "the most tokens to write; default: generation_config.json's, or else 128")
  found.add_argument('--prompt', metavar='TEXT', required=True, help='the text to continue')
  found.add_argument(
    '--use_chat_template',
    choices=['true', 'false'],
    default='false',
    help="true: make it a message of the user, by the folder's chat template",
  )
  json_output.add_flag(found)
  return found


def run_generate(arguments: list[str]) -> None:
  """Runs `official-ext generate ARGUMENTS`: token by token on a terminal, otherwise at the end.

  Raises:
    UserError: with the flag, file or field.
  """
  known = _generate_parser().parse_args(arguments)
  if not known.prompt:
    raise errors.UserError('--prompt: is empty')
  if known.chat_template_path is not None and known.use_chat_template == 'false':
    raise errors.UserError('--chat_template_path: only --use_chat_template=true reads it')
  folders = model_folders.find(known.folder, known.base_model)
  model_loading.check_unicode(known.prompt, '--prompt')
  tokenizer = model_loading.load_tokenizer(folders, known.chat_template_path)
  tokens = _prompt_tokens(tokenizer, known)
  given = given_generation_flags(known)
  named = arguments_lib.named_adapters(known.adapter)
  model, adapters = model_loading.load_with_adapters(folders, named, known.dtype, known.load_in_4bit)
  model_loading.check_tokens(tokens, model, folders)
  config = model_loading.generation_config(model, tokenizer, given)
  config = model_loading.limited_to_context(model, config, len(tokens), 'max_new_tokens' in given)
  from official_ext.language.serving import writing  # pylint: disable=g-import-not-at-top  # TensorFlow.

  writer = writing.Writer(model, tokenizer, config, by_block=writing.pays_by_block(config.max_new_tokens))
  texts: list[json_values.JsonObject] = []
  for name in adapters.names if adapters is not None else ('',):
    if adapters is not None:
      adapters.set_adapter(name)
      if len(named) > 1:
        print(f'[{name}]', flush=True)
    written = writer.write(tokens, known.seed, sys.stdout, sys.stdout.isatty())
    texts.append({'adapter': name, 'text': written.text, 'tokens': written.num_tokens, 'ended_by': written.ended_by})
    if written.ended_by == writing.FULL:
      print(f'stopped after {written.num_tokens} tokens (--max_new_tokens)', file=sys.stderr)
  if known.json:
    json_output.print_document({'prompt': known.prompt, 'texts': texts})


def _prompt_tokens(tokenizer: 'tokenizer_lib.Tokenizer', known: argparse.Namespace) -> list[int]:
  """Of the prompt."""
  if known.use_chat_template == 'true':
    text = tokenizer.apply_chat_template([{'role': 'user', 'content': known.prompt}], add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
  tokens = tokenizer.encode(known.prompt)
  if not tokens:
    raise errors.UserError(f'--prompt: {known.prompt!r} has no tokens')
  return tokens


_CHAT_HELP = 'A line is a message. /clear begins anew, Ctrl-C stops an answer, /exit or Ctrl-D ends.'
_EXIT, _CLEAR, _ADAPTER = '/exit', '/clear', '/adapter'


def _chat_parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext chat',
    'Answers messages, which are lines of stdin, by the chat template of FOLDER. /clear starts a new conversation, '
    'Ctrl-C stops an answer, /exit or Ctrl-D ends. If the context is full, the oldest messages are dropped.',
  )
  arguments_lib.add_model_arguments(found)
  several = (
    'a folder of peft with adapters for FOLDER; the line /adapter NAME takes another one, /adapter none the base'
  )
  arguments_lib.add_adapters(found, several)
  add_generation_flags(found, 'the most tokens of an answer; default: 512, or half the context')
  found.add_argument('--system_prompt', default='', metavar='TEXT', help='the first message, of the system')
  return found


def run_chat(arguments: list[str]) -> None:
  """Runs `official-ext chat ARGUMENTS`: answers are all that is on stdout.

  Raises:
    UserError: with the flag, file or field. On a terminal a message that has no answer ends nothing.
  """
  known = _chat_parser().parse_args(arguments)
  model_loading.check_unicode(known.system_prompt, '--system_prompt')
  folders = model_folders.find(known.folder, known.base_model)
  tokenizer = model_loading.load_tokenizer(folders, known.chat_template_path)
  tokenizer.chat_template()  # Before the weights are loaded.
  given = given_generation_flags(known)
  named = arguments_lib.named_adapters(known.adapter)
  model, adapters = model_loading.load_with_adapters(folders, named, known.dtype, known.load_in_4bit)
  from official_ext.language.serving import writing  # pylint: disable=g-import-not-at-top  # TensorFlow.

  conversation = writing.Conversation(model, tokenizer, folders, given, known.system_prompt, known.seed)
  is_interactive = sys.stdin.isatty()
  if isinstance(sys.stdin, io.TextIOWrapper):
    sys.stdin.reconfigure(errors='surrogateescape')  # A wrong byte is a matter of its message.
  if is_interactive:
    print(_CHAT_HELP, file=sys.stderr)
  while True:
    message = _read_message(is_interactive)
    if message is None or message == _EXIT:
      return
    if message == _CLEAR:
      conversation.clear()
    elif message:
      try:
        if adapters is not None and message.split()[0] == _ADAPTER:
          _switch_adapter(adapters, message.removeprefix(_ADAPTER).strip())
        else:
          conversation.answer(message)
      except errors.UserError as error:
        if not is_interactive:
          raise
        print(f'error: {error}', file=sys.stderr)


def _switch_adapter(adapters: 'adapter_sets.AdapterSet', name: str) -> None:
  """Takes another adapter, and reports which is in use."""
  if name:
    adapters.set_adapter(None if name == 'none' else name)
  print(f'adapter: {adapters.active or "none"} (of {", ".join(adapters.names)})', file=sys.stderr)


def _read_message(is_interactive: bool) -> str | None:
  """A line; None at the end."""
  if not is_interactive:
    line = sys.stdin.readline()
    return line.strip() if line else None
  try:
    if sys.stdout.isatty():
      _edit_lines()
      return input('> ').strip()
    print('> ', end='', file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None
  except EOFError:
    print(file=sys.stderr)
    return None
  except KeyboardInterrupt:
    print('\n/exit or Ctrl-D ends', file=sys.stderr)
    return ''


def _edit_lines() -> None:
  """Lets `input` know the arrow keys, if this Python can."""
  try:
    import readline  # noqa: F401  # pylint: disable=g-import-not-at-top,unused-import
  except ImportError:
    pass
