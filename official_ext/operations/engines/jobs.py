"""Jobs, and the interface of engines.

An engine is a module of this package. It renders a job in the form of its cluster, and submits it by the cluster's own
command. TF_CONFIG and the exit status are all that it shares with train.py: 75 means that the same command resumes.
Each has

    SUMMARY                                  a line about it, for the help
    OPTIONS                                  argparse's arguments of `--name` -> keywords; 'least' of an integer. One
                                             meaning has one name in all engines: nodes, gpus, cpus, memory, time
    NEEDS_ABSOLUTE                           whether it runs without the present folder: in containers
    HAS_ARRAYS                               whether one submission may be the trials of a sweep
    render(job, options) -> str              the script or manifest
    submit(job, options, text) -> str        hands it over; the name of the job there. UserError: its command is missing
    is_active(name, options) -> bool | None  whether a job waits or runs there; None if that is not known
"""

from collections.abc import Mapping, Sequence
import dataclasses
import re
import shutil
import subprocess
from typing import Any

import yaml

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.operations.runs import run_folders

# A text that is the same text in every version of YAML. The readers of manifests do not agree on `on`, 010 and 1e3.
_PLAIN = re.compile(r'(?!(?:y|yes|n|no|on|off|true|false|null)$)[A-Za-z/][\w/.-]*', re.IGNORECASE | re.ASCII)
_MAX_NAME = 40  # Names of pods are longer by a few parts, and have at most 63 letters.
_SECONDS = 120.0


class _Dumper(yaml.SafeDumper):
  """Writes a text in quotes if other parsers might read another type, and one of several lines as a block."""

  def ignore_aliases(self, data: object) -> bool:
    """Overrides the base class: repeated parts are written twice, as people would."""
    return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
  style = None if _PLAIN.fullmatch(text) else '|' if text.endswith('\n') and text.count('\n') > 1 else '"'
  return dumper.represent_scalar('tag:yaml.org,2002:str', text, style=style)


_Dumper.add_representer(str, _text)


# Variables that engines, the shell of a script or this library set: a job may not set them, by name or beginning.
_RESERVED_NAMES = frozenset(
  ('TF_CONFIG', 'CLUSTER_SPEC', 'JOB_COMPLETION_INDEX', 'UID', 'EUID', 'PPID', 'BASHOPTS', 'BASH_VERSINFO', 'SHELLOPTS')
  + ('job', 'step', 'status', 'srun', 'command', 'model_dir', 'workers')  # Of the scripts.
)
_RESERVED_PREFIXES = ('OFFICIAL_EXT_', 'SLURM_', 'KUBERNETES_', 'JOBSET_')


def nodes_option(node: str) -> dict[str, Any]:
  """The keywords of --nodes; `node` describes one."""
  return {'least': 1, 'default': 1, 'metavar': 'N', 'help': f'{node}, which train together; default: 1'}


def is_reserved(name: str) -> bool:
  """Whether a variable of the environment is set by an engine or its script."""
  return name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIXES)


@dataclasses.dataclass(frozen=True)
class Trial:
  """A run.

  Attributes:
    model_dir: its folder, absolute or remote.
    flags: of train.py.
  """

  model_dir: str
  flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Job:
  """A job to submit.

  Attributes:
    name: letters, digits and dashes, as all engines take it.
    program: train.py, or its replacement; with NEEDS_ABSOLUTE as it is called in the container.
    cwd: the folder in which it is run, absolute.
    trials: the run, or the runs of a sweep.
    is_array: whether they are a sweep's.
    folder: the run's, or the sweep's.
    max_restarts: how often it is retried after it was preempted or lost; None: the engine's default.
    env: further variables.
    mode: such as train_and_eval.
  """

  name: str
  program: str
  cwd: str
  trials: tuple[Trial, ...]
  folder: str
  is_array: bool = False
  max_restarts: int | None = None
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  mode: str = 'train'

  @property
  def flags(self) -> tuple[str, ...]:
    """The flags of its only run."""
    assert not self.is_array
    return self.trials[0].flags


def name_of(text: str) -> str:
  """A name like a text, of small letters, digits and dashes: valid for Kubernetes."""
  name = re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')[:_MAX_NAME].rstrip('-')
  return name if name[:1].isalpha() else f'run-{name}'.rstrip('-')


def call(command: Sequence[str], what: str, text: str | None = None, cwd: str | None = None) -> str:
  """The output of an engine's command.

  Args:
    command: the program and its arguments.
    what: the engine's name, and how its command is installed.
    text: its standard input.
    cwd: the folder in which it runs.

  Raises:
    UserError: it is missing, or refuses; in one line.
  """
  program = shutil.which(command[0])
  if program is None:
    raise errors.UserError(
      f'{command[0]}: no such command here, and --engine={what} submits by it: install it, submit from a machine that '
      'has it, or use the output of --render there'
    )
  try:
    done = subprocess.run(
      [program, *command[1:]], input=text or '', capture_output=True, text=True, cwd=cwd, timeout=_SECONDS, check=False
    )
  except subprocess.TimeoutExpired:
    raise errors.UserError(
      f'{command[0]}: has not answered for {_SECONDS:g} s; ask it whether the job exists'
    ) from None
  if done.returncode:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if re.search(r'\w', line)]
    is_traceback = any(line.startswith('Traceback') for line in lines)
    reason = '; '.join(lines[-1 if is_traceback else -3 :]) or f'status {done.returncode}'
    raise errors.UserError(safe_text.mask(f'{command[0]}: refuses the job: {reason}'))
  return done.stdout


def output_of(command: Sequence[str]) -> tuple[int, str]:
  """The status and the output of an engine's command that only asks; status 127 if it is missing or silent."""
  program = shutil.which(command[0])
  if program is None:
    return 127, ''
  try:
    done = subprocess.run(
      [program, *command[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False
    )
  except subprocess.TimeoutExpired:
    return 127, ''
  return done.returncode, done.stdout


def yaml_document(values: Mapping[str, object], arguments: Sequence[str]) -> str:
  """A manifest as YAML.

  Args:
    values: of the engine.
    arguments: of --engine_arg, PATH=VALUE: dotted paths into the manifest, where a number names an element of a
      list, and values in YAML.

  Raises:
    UserError: a path leads nowhere.
  """
  changed: object = _copied(values)
  for text in arguments:
    path, equals, value = text.partition('=')
    if not equals or not path:
      raise errors.UserError(
        f'--engine_arg={text}: expected PATH=VALUE, with a dotted path into the output of --render'
      )
    _put(changed, path.split('.'), config_text.load(value, f'--engine_arg={path}'), text)
  return yaml.dump(changed, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)


def refuse_several(arguments: Sequence[str], names: Sequence[str]) -> None:
  """Refuses an --engine_arg that has a separate option.

  Raises:
    UserError: see above.
  """
  for text in arguments:
    name = text.lstrip('-').partition('=')[0]
    if not text.startswith('-') or '\n' in text:
      raise errors.UserError(f'--engine_arg={text}: expected an option of the engine, in one line, such as --qos=high')
    if name in names:
      raise errors.UserError(f'--engine_arg={text}: is set here; official-ext submit has an option for it, or needs it')


def _copied(values: object) -> object:
  if isinstance(values, Mapping):
    return {key: _copied(value) for key, value in values.items()}
  return [_copied(value) for value in values] if isinstance(values, (list, tuple)) else values


def _put(values: object, path: Sequence[str], value: object, text: str) -> None:
  for place, name in enumerate(path):
    is_last = place == len(path) - 1
    if isinstance(values, list):
      if not name.isdigit() or int(name) > len(values) - (not is_last):
        raise errors.UserError(f'--engine_arg={text}: {".".join(path[: place + 1])}: no such element of the list')
      if int(name) == len(values):
        values.append(None)
      key: Any = int(name)
    elif isinstance(values, dict):
      key = name
    else:
      raise errors.UserError(f'--engine_arg={text}: {".".join(path[:place])}: has nothing inside')
    if is_last:
      values[key] = value
    elif isinstance(values, dict):
      values = values.setdefault(key, {})
    else:
      values = values[key]


def log_path(model_dir: str, mode: str = 'train') -> str:
  """The file in a run's folder that its output is added to, as for detached runs."""
  return run_folders.Run(model_dir, '').log_path(mode)
