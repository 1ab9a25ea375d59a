"""The flags of train.py in words, and its `--help`. Without TensorFlow."""

import os
import sys

from official_ext.cli import arguments as arguments_lib

FULL = '--helpfull'  # It lists all flags of all imported modules.
# Title -> flag -> (its value, '' for a switch; the text).
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
  'needed first': {
    'experiment': ('NAME', 'the name of a registered experiment; `official-ext list` prints them'),
    'mode': ('MODE', 'train, eval, train_and_eval, continuous_eval, train_and_post_eval or export'),
    'model_dir': ('FOLDER', "the folder for the run's files; the same command resumes the run"),
    'set': (
      'NAME=VALUE',
      'sets one field, by its dotted path (trainer.train_steps=100) or by a short name (learning_rate=1e-3); may be '
      'repeated, applied last; `official-ext describe EXPERIMENT` prints both',
    ),
    'config_file': ('FILE', 'a YAML or JSON file with fields to change; may be repeated, a later one wins'),
  },
  'modules and checkpoints': {
    'registry': ('MODULE', 'a module to import, which registers experiments; may be repeated'),
    'checkpoint': (
      'PATH',
      'the checkpoint to evaluate or to export, or from which a new line of training starts: its path, or that of its '
      'folder',
    ),
    'branch': (
      '',
      'lets training start at --checkpoint although --model_dir holds other checkpoints, which are set aside',
    ),
  },
  'checks': {
    'dry_run': ('', 'runs the whole life of the experiment once, small, in a temporary folder'),
    'debug': ('', 'runs one step eagerly, and names the first operation that is not finite'),
    'debug_step': (
      'N',
      'the step that --debug runs; default: the last one that the run in --model_dir has skipped, else the one after '
      'its newest checkpoint',
    ),
    'profile_steps': (
      'FIRST,LAST',
      'the first and the last step to profile, such as 20,29: a trace for TensorBoard, and a table of their time',
    ),
  },
  'of Model Garden': {
    'params_override': (
      'TEXT',
      'fields to change: trainer.train_steps=100,runtime.seed=1 or YAML or JSON, or a file; applied after '
      '--config_file, before --set',
    ),
    'gin_file': ('FILE', 'a file of gin bindings; may be repeated'),
    'gin_params': ('BINDING', 'a gin binding; may be repeated'),
    'tpu': ('NAME', 'the name or the address (grpc://IP:8470) of a TPU'),
    'tf_data_service': ('ADDRESS', 'the address of a tf.data service'),
  },
}
# Flags of absl.
_LOGGING = {
  'verbosity': ('N', "0: TensorFlow's and Model Garden's messages too, and tracebacks; default: warnings and errors"),
  'pdb_post_mortem': ('', 'starts the debugger at an error'),
}
_DESCRIPTION = (
  'Trains, evaluates or exports an experiment. docs/getting_started/first_run.md is the first page about it, '
  'docs/reference/flags.md has the statuses. --helpfull prints the flags of all imported modules.'
)


def is_wanted(words: list[str]) -> bool:
  """Whether the arguments ask for this help, and not for absl's."""
  return FULL not in words and bool({*arguments_lib.HELP} & set(words))


def text(program: str) -> str:
  """The help.

  Args:
    program: its name, `train.py` or `official-ext train`.
  """
  parser = arguments_lib.Parser(program, _DESCRIPTION)
  parser.usage = f'{program} --experiment=NAME --mode=MODE --model_dir=FOLDER [--set=NAME=VALUE ...] [FLAGS]'
  for title, found in {**GROUPS, 'output': _LOGGING}.items():
    group = parser.add_argument_group(title)
    for name, (value, meaning) in found.items():
      if value:
        group.add_argument(f'--{name}', metavar=value, help=meaning)
      else:
        group.add_argument(f'--{name}', action='store_true', help=meaning)
  return parser.format_help()


def print_help(program: str) -> None:
  """Prints the help. A reader that closes the pipe, such as `head`, is no error."""
  try:
    print(text(program), end='', flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end.
