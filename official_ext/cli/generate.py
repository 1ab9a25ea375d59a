"""official-ext generate: the continuation of a prompt, alone on stdout."""

import argparse
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base.run_folder import model_folders
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import generation_flags
from official_ext.cli import language_models
from official_ext.language.serving import generation_settings
from official_ext.language.serving import model_loading

if TYPE_CHECKING:
  from official_ext.language.text import tokenizer as tokenizer_lib

# The program of a model of 135 M parameters compiles for 12 s longer than that of a block, and saves 30 ms a token.
_BY_BLOCK_TOKENS = 384


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext generate',
    'Continues a text, and prints that alone on stdout: token by token on a terminal, otherwise at the end.',
  )
  language_models.add_model_arguments(found)
  several = 'a folder of peft with adapters for FOLDER; with several, a continuation of each below a line [NAME]'
  language_models.add_adapters(found, several)
  generation_flags.add(found, 'the most tokens to write; default: 128')
  found.add_argument('--prompt', metavar='TEXT', required=True, help='the text to continue')
  found.add_argument(
    '--use_chat_template',
    choices=['true', 'false'],
    default='false',
    help="true: make it a message of the user, by the folder's chat template",
  )
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext generate ARGUMENTS`: token by token on a terminal, otherwise at the end.

  Raises:
    UserError: with the flag, file or field.
  """
  known = _parser().parse_args(arguments)
  if not known.prompt:
    raise errors.UserError('--prompt: is empty')
  if known.chat_template_path is not None and known.use_chat_template == 'false':
    raise errors.UserError('--chat_template_path: only --use_chat_template=true reads it')
  folders = model_folders.find(known.folder, known.base_model)
  model_loading.check_unicode(known.prompt, '--prompt')
  tokenizer = model_loading.load_tokenizer(folders, known.chat_template_path)
  tokens = _tokens(tokenizer, known)
  given = generation_flags.given(known)
  named = language_models.named_adapters(known.adapter)
  model, adapters = model_loading.load_with_adapters(folders, named, known.dtype, known.load_in_4bit)
  generation_settings.check_tokens(tokens, model, folders)
  config = generation_settings.config_of(model, tokenizer, given)
  config = generation_settings.with_room(model, config, len(tokens), 'max_new_tokens' in given)
  from official_ext.language.serving import writing  # pylint: disable=g-import-not-at-top  # TensorFlow.

  writer = writing.Writer(model, tokenizer, config, by_block=config.max_new_tokens <= _BY_BLOCK_TOKENS)
  for name in adapters.names if adapters is not None else ('',):
    if adapters is not None:
      adapters.set_adapter(name)
      if len(named) > 1:
        print(f'[{name}]', flush=True)
    written = writer.write(tokens, known.seed, sys.stdout, sys.stdout.isatty())
    if written.ended_by == writing.FULL:
      print(f'stopped after {written.num_tokens} tokens (--max_new_tokens)', file=sys.stderr)


def _tokens(tokenizer: 'tokenizer_lib.Tokenizer', known: argparse.Namespace) -> list[int]:
  """Of the prompt."""
  if known.use_chat_template == 'true':
    text = tokenizer.apply_chat_template([{'role': 'user', 'content': known.prompt}], add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
  tokens = tokenizer.encode(known.prompt)
  if not tokens:
    raise errors.UserError(f'--prompt: {known.prompt!r} has no tokens')
  return tokens
