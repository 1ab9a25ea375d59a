"""official-ext new NAME: writes an experiment that trains, with its test; or a file that another experiment runs.

It renames a copy of an experiment's code, or of a template. This relies on a convention: every name of an experiment
that is known outside its folder (experiment, task, data set, modules, classes, constants) begins with the folder's
name: `my_task`, `my_task_small`, `MyTask`, `MyTaskConfig`, `MY_TASK_DIR`. Prose writes the name in backticks; the same
word without them stays. Nothing else in the code has exactly that name, except what stays: names of the library after
`ext.`, the value of `--like=`, and the value of `example_format`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import importlib
import importlib.util
import io
import keyword
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import types

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths as paths_lib
from official_ext.training.config import parser

_STAYS = r"(?<!\bext\.)(?<!--like=)(?<!\bexample_format=')"  # After these a name stays.
# The characters around a name that is not a word of a sentence.
_WHOLE = (
  (r'(?<=\bexperiments[./])', r'\b'),
  (r'(?<=--experiment=)', r'\b'),
  (r'(?<=\bruns/)', r'\b'),
  (r'(?<=\bimport )', r'\b'),
  (r'(?<=\bclass )', r'\b'),
  (r'(?<=\bdef )', r'\b'),
  (r'(?<=\bexperiment )', r'\b'),
  (r'(?<=\w\.)', r'(?=\()'),
  (r'(?<![\w.])', r'(?=\.[A-Za-z_])'),
  ('(?<=`)', '(?=`)'),
  ("(?<=')", "(?=['/])"),
  ('(?<=")', '(?=["/])'),
)


def camel_case(name: str) -> str:
  """Converts 'my_task' to the name of a class, 'MyTask'."""
  return ''.join(word.capitalize() for word in name.split('_'))


def renamed(text: str, old: str, new: str, others: Sequence[str] = ()) -> str:
  """Replaces an experiment's name in code, or in a file's name.

  Args:
    text: the code.
    old: the experiment's name.
    new: its new name.
    others: names that stay although they begin with `old`, such as names of other experiments.
  """
  stays = ''.join(rf'(?!{re.escape(other)}\b)' for other in others if other.startswith(f'{old}_'))
  # At the beginning of a name, also after underscores; not inside a name, nor in one of another module.
  begins = rf'{_STAYS}(?<![A-Za-z0-9_])(_*)'
  text = re.sub(rf'{begins}{stays}{old}(?=_\w)', rf'\g<1>{new}', text)
  text = re.sub(rf'{begins}{old.upper()}(?=_\w)', rf'\g<1>{new.upper()}', text)
  text = re.sub(rf'{begins}{camel_case(old)}(?=[A-Z])', rf'\g<1>{camel_case(new)}', text)
  # As a whole name, if it cannot be a word of a sentence; one with an underscore never is.
  for before, after in [(r'(?<!\w)', r'(?!\w)')] if '_' in old else _WHOLE:
    text = re.sub(f'{_STAYS}{before}{old}{after}', new, text)
    text = re.sub(f'{_STAYS}{before}{camel_case(old)}{after}', camel_case(new), text)
  return text


def identifiers(text: str) -> set[str]:
  """Every name that code uses."""
  tokens = tokenize.generate_tokens(io.StringIO(text).readline)
  return {token.string for token in tokens if token.type == tokenize.NAME and not keyword.iskeyword(token.string)}


def as_package(text: str, name: str) -> str:
  """Converts the code of an experiment to the code of a package: `experiments.NAME` becomes `NAME`.

  Imports within the experiment are relative, and stay.
  """
  text = re.sub(rf'\bfrom experiments import {name}\b', f'import {name}', text)
  return re.sub(rf'\bexperiments([./]){name}\b', name, text)


def with_long_lines_allowed(text: str, max_length: int) -> str:
  """Lets the linter accept the long lines of code, if it has some: a longer name has made them so."""
  if all(len(line) <= max_length for line in text.splitlines()):
    return text
  return f'# ruff: noqa: E501\n{text}'


_TEMPLATES = pathlib.Path(__file__).parent / 'templates'
_DEFAULT = 'my_task'  # The name of the experiment in the templates.
_FILE = 'template'  # The initial file of an experiment that runs a user's file.
_MAX_LINE = 120
# The packages in official_ext/training that name no experiment.
PACKAGES_OF_THE_LOOP = ('config', 'devices', 'step', 'checkpoints', 'actions', 'record', 'tasks', 'loop')
_NAME = re.compile(r'[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*')

Files = dict[str, str]


def run(name: str, like: str = '', as_package: bool = False) -> json_values.JsonObject:
  """Runs the command in the current folder, after importing the modules that register experiments.

  Args:
    name: of the new experiment.
    like: the experiment to copy; '' for the template.
    as_package: whether to make a package in this folder.

  Returns:
    {name, files, commands}: for a program.

  Raises:
    UserError: the name cannot be used, or a file that it would write exists already. Nothing was written.
  """
  folder = pathlib.Path.cwd()
  file = _folders().get(like, folder) / f'{_FILE}.py'
  if like and not as_package and file.exists():
    _check_name(name)
    return _as_document(name, *_write_file(folder / f'{name}.py', file.read_text()))
  is_checkout = all((folder / part).exists() for part in ('train.py', 'registry_imports.py', 'experiments/__init__.py'))
  if not as_package and not is_checkout:
    raise errors.UserError(
      f'{folder}: is not a checkout of official_ext (no train.py, registry_imports.py, experiments/); go to one, or '
      'add --package for a separate package'
    )
  _check_name(name)
  code, test = _files(name, like, as_package)
  write = _write_package if as_package else _write_experiment
  return _as_document(name, *write(folder, name, code, test))


def _as_document(name: str, files: Sequence[str], commands: Sequence[str]) -> json_values.JsonObject:
  return {'name': name, 'files': list(files), 'commands': list(commands)}


def _check_name(name: str) -> None:
  """Raises a UserError if the name cannot be used."""
  if not _NAME.fullmatch(name) or keyword.iskeyword(name):
    raise errors.UserError(
      f'{name}: cannot be the name of a module; take lower-case words that are joined by _ and begin with a letter'
    )
  for known in parser.experiment_names():
    if known.split('/')[0] == name:
      raise errors.UserError(f'{name}: an experiment of this name is registered already; take another name')


# The files to write.


def _files(name: str, like: str, as_package: bool) -> tuple[Files, str]:
  """(the files of the experiment's folder, its test), under the new name."""
  if like:
    origin, files, test = like, _experiment_files(like), _experiment_test(like, as_package)
  else:
    origin, files = _DEFAULT, _template_files(_DEFAULT)
    test = files.pop(f'{_DEFAULT}_test.py')
  others = set(_folders()) - {origin}
  for path, text in {**files, 'its test': test}.items():
    words = identifiers(text) if path.endswith(('.py', 'test')) else set()
    taken = {name, camel_case(name)} & words
    if taken and name != origin:
      raise errors.UserError(
        f'{name}: the code of {like or "the template"} means something else by {sorted(taken)[0]}; take another name'
      )

  def rename(text):
    return with_long_lines_allowed(renamed(text, origin, name, sorted(others)), _MAX_LINE)

  def of_file(path, text):
    if path.endswith('.md'):
      return renamed(text, origin, name, sorted(others))
    return rename(text) if path.endswith('.py') else text

  found = {renamed(f'/{path}', origin, name)[1:]: of_file(path, text) for path, text in files.items()}
  return found, rename(test)


def _folders() -> dict[str, pathlib.Path]:
  """The folders of experiments, by name: of the current folder or checkout, or else the installed ones."""
  modules: list[pathlib.Path] = []
  for package in ('experiments', 'official_ext.experiments'):
    with contextlib.suppress(ModuleNotFoundError):
      for root in importlib.import_module(package).__path__:
        modules += sorted(pathlib.Path(root).glob('*/__init__.py'))
  return {path.parent.name: path.parent for path in reversed(modules)}


def _experiment_files(name: str) -> Files:
  """The files of an experiment's folder, by their relative paths."""
  folders = _folders()
  if name not in folders:
    hint = errors.did_you_mean(name, folders, f'there are {", ".join(sorted(folders))}')
    raise errors.UserError(f'--like={name}: is not a folder of experiments/; {hint}')
  root = folders[name]
  paths = [path for path in sorted(root.rglob('*')) if path.is_file() and '__pycache__' not in path.parts]
  with contextlib.suppress(UnicodeDecodeError):
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}
  raise errors.UserError(f'--like={name}: its folder holds files that are not text')


def _experiment_test(name: str, as_package: bool) -> str:
  """The experiment's test, if it has one that concerns no other experiment; or else one that fits every experiment.

  A package gets the latter, because the project's tests share modules that it does not have.
  """
  path = pathlib.Path.cwd() / f'tests/experiments/{name}_test.py'
  if path.exists() and not as_package:
    text = path.read_text()
    named = {folder for folder in _folders() if re.search(rf'\b{folder}\b', _code_of(text))}
    if named == {name}:
      return text
  general = (_TEMPLATES / 'general_test.py.txt').read_text()
  return renamed(general, _DEFAULT, name)


def _code_of(text: str) -> str:
  """The modules that code imports, and its strings."""
  words = []
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.ImportFrom):
      words += [f'{node.module}.{alias.name}' for alias in node.names if str(node.module).startswith('experiments')]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' not in node.value:
      words.append(node.value)
  return ' '.join(words)


def _template_files(name: str) -> Files:
  root = _TEMPLATES / name
  return {path.name.removesuffix('.txt'): path.read_text() for path in sorted(root.glob('*.txt'))}


# Writing everything or nothing.


def _write_experiment(folder: pathlib.Path, name: str, code: Files, test: str) -> tuple[list[str], list[str]]:
  """Writes experiments/NAME, its test, its golden configuration, its line in registry_imports.py.

  Returns:
    (files, next commands), as the other functions below.
  """
  _check_unused_in_core(folder, name)
  experiment, test_path = folder / 'experiments' / name, folder / f'tests/experiments/{name}_test.py'
  registry = folder / 'registry_imports.py'
  with _undone_on_error() as undo:
    _place(experiment, code, undo)
    for path, text in {test_path: test, **_golden(folder, name, code)}.items():
      _write(path, text, undo)
    lines = _with_import(registry.read_text(), name)
    paths_lib.write_atomically(str(registry), lines.encode())
  _lay_out([experiment, test_path])
  files = [f'{path.relative_to(folder)}{os.sep if path.is_dir() else ""}' for path in (experiment, test_path)]
  for file in files:
    print(f'wrote  {file}')
  print(f'wrote  registry_imports.py: from experiments import {name}')
  test = f'.venv/bin/python -m pytest tests/experiments/{name}_test.py'
  return [*files, 'registry_imports.py'], _print_next_steps(test, 'python train.py', name)


def _write_package(folder: pathlib.Path, name: str, code: Files, test: str) -> tuple[list[str], list[str]]:
  """Writes NAME/ with the package NAME, its test and the files that install it."""
  if not (folder / name).exists() and importlib.util.find_spec(name) is not None:
    raise errors.UserError(f'{name}: a module of this name is installed already; take another name')
  # Under src/: Python would take a folder of the same name next to it for the package.
  files = {f'src/{name}/{path}': as_package(text, name) for path, text in code.items()}
  files[f'tests/{name}_test.py'] = as_package(test, name)
  for path, text in _template_files('package').items():
    files[path] = text.replace(_DEFAULT, name)
  with _undone_on_error() as undo:
    _place(folder / name, files, undo)
  for path in files:
    print(f'wrote  {name}/{path}')
  install = f'cd {name}; pip install --no-deps --no-build-isolation -e .'
  print(f'then   {install}')
  commands = _print_next_steps('python -m pytest', 'official-ext train', name)
  return [f'{name}/{path}' for path in files], [install, *commands]


def _write_file(path: pathlib.Path, template: str) -> tuple[list[str], list[str]]:
  """Writes a file that an experiment runs, and prints the commands in its docstring, which are indented there."""
  name = path.stem
  if not path.exists() and importlib.util.find_spec(name) is not None:
    raise errors.UserError(f'{name}: a module of this name is installed already; take another name')
  text = template.replace(f'{_FILE}.py', path.name).replace(f'runs/{_FILE}', f'runs/{name}')
  with _undone_on_error() as undo:
    _write(path, text, undo)
  print(f'wrote  {path.name}')
  lines = (ast.get_docstring(ast.parse(text)) or '').splitlines()
  commands = [' '.join(line.split()) for line in lines if line.startswith('    ')]  # A long one has an indent within.
  for command in commands:
    print(f'then   {command}')
  return [path.name], commands


def _lay_out(paths: Sequence[pathlib.Path]) -> None:
  """Formats the new files, if the project's formatter is installed: a longer name breaks lines elsewhere."""
  for command in (['format'], ['check', '--fix']):
    arguments = [sys.executable, '-m', 'ruff', *command, '--quiet', '--no-cache', *map(str, paths)]
    subprocess.run(arguments, check=False, capture_output=True)


def _print_next_steps(test: str, driver: str, name: str) -> list[str]:
  """Prints and returns the next commands."""
  check = f'official-ext check {name}'
  train = f'{driver} --experiment={name} --mode=train_and_eval --model_dir=runs/{name}'
  print(f'test   {test}\ncheck  {check}\ntrain  {train}')
  return [test, check, train]


@contextlib.contextmanager
def _undone_on_error() -> Iterator[list[pathlib.Path]]:
  """Yields a list, and removes the paths in it if anything is raised."""
  made: list[pathlib.Path] = []
  try:
    yield made
  except BaseException as error:
    for path in made:
      shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if isinstance(error, OSError):
      raise errors.UserError(f'{error.filename}: {error.strerror}; nothing was written') from error
    raise


def _place(folder: pathlib.Path, files: Files, undo: list[pathlib.Path]) -> None:
  """Makes a folder with files, which appears at once and complete."""
  if folder.exists():
    raise errors.UserError(f'{folder}: exists already; nothing was written')
  staged = pathlib.Path(tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent))
  undo.append(staged)
  for path, text in files.items():
    (staged / path).parent.mkdir(parents=True, exist_ok=True)
    (staged / path).write_text(text)
  staged.chmod(0o777 & ~_umask())
  os.rename(staged, folder)
  undo[undo.index(staged)] = folder


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _write(path: pathlib.Path, text: str, undo: list[pathlib.Path]) -> None:
  """Writes a new file."""
  if path.exists():
    raise errors.UserError(f'{path}: exists already; nothing was written')
  undo.append(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def _golden(folder: pathlib.Path, name: str, code: Mapping[str, str]) -> dict[pathlib.Path, str]:
  """The resolved configurations of the experiments that the new folder registers, in the form of tests/golden."""
  experiments = importlib.import_module('experiments')
  if str(folder / 'experiments') not in map(os.path.abspath, experiments.__path__):
    experiments.__path__.append(str(folder / 'experiments'))
  known = set(parser.experiment_names())
  importlib.invalidate_caches()
  try:
    importlib.import_module(f'experiments.{name}')
  except Exception as error:  # The folder that was copied may raise anything.
    for module in [module for module in sys.modules if f'{module}.'.startswith(f'experiments.{name}.')]:
      del sys.modules[module]
    reason = ' '.join(str(error).split())
    raise errors.UserError(
      f'experiments/{name}: cannot be imported: {type(error).__name__}: {reason}; nothing was written'
    ) from error
  new = [experiment for experiment in parser.experiment_names() if experiment not in known]
  if name not in new:
    raise errors.UserError(f'{name}: the code that was copied registers {", ".join(new) or "nothing"}; nothing written')
  golden = {}
  for experiment in new:
    flags = types.SimpleNamespace(experiment=experiment)
    params = parser.parse_configuration(flags, print_return=False)
    golden[folder / f'tests/golden/{experiment.replace("/", "_")}.yaml'] = config_text.dump(params.as_dict())
  return golden


def _check_unused_in_core(folder: pathlib.Path, name: str) -> None:
  """Refuses a name that the library uses: a test checks that the library names no experiment."""
  folders = [folder / 'official_ext/training' / package for package in PACKAGES_OF_THE_LOOP]
  for path in sorted(path for each in folders for path in each.rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and node.value == name:
        raise errors.UserError(
          f'{name}: is a word of the library itself ({path.name}, line {node.lineno}); take another name'
        )


def _with_import(text: str, name: str) -> str:
  """registry_imports.py with one more line, in alphabetical order among those like it."""
  lines = text.splitlines(keepends=True)
  start = 'from experiments import '
  places = [number for number, line in enumerate(lines) if line.startswith(start)]
  line = f'{start}{name}\n'
  later = [number for number in places if lines[number] > line]
  fallback = [number for number, text in enumerate(lines) if text.startswith(('import ', 'from '))] or [len(lines)]
  lines.insert(later[0] if later else places[-1] + 1 if places else fallback[0], line)
  return ''.join(lines)
