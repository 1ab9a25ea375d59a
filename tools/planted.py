"""Plants a fault for each promise of the library in a copy, and reports whether `make test` would find it.

python -m tools.planted                    # all, in about seven minutes on two cores
python -m tools.planted wrong_seed_at_resume missing_sync
python -m tools.planted --unchanged        # the same tests without faults: they must pass

A fault names a function and a piece of its text, not a file: code may move. The tests that should notice it are named
likewise, and belong to the short form of the tests. A change of the tests must find as many faults as before.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

from tools import planted_faults

ROOT = pathlib.Path(__file__).resolve().parent.parent
_MAX_SECONDS = 180  # For the tests of one fault: some wait for a process that a fault keeps from ending.
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PlantError(Exception):
  """A fault cannot be planted: the code has changed."""


@dataclasses.dataclass(frozen=True)
class Planted:
  """A file with a fault.

  Attributes:
    path: relative to the root of the project.
    content: its text, with the fault.
  """

  path: pathlib.Path
  content: str


@functools.cache
def _functions() -> dict[str, list[tuple[pathlib.Path, str]]]:
  """The functions of the library by name, `function` or `Class.method`: their files and their texts."""
  found: dict[str, list[tuple[pathlib.Path, str]]] = {}
  for path in sorted((ROOT / 'official_ext').rglob('*.py')):
    text = path.read_text(encoding='utf-8')
    for name, node in _named(ast.parse(text)):
      segment = ast.get_source_segment(text, node, padded=True)
      found.setdefault(name, []).append((path, segment or ''))
  return found


def _named(tree, prefix=''):
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.ClassDef):
      yield from _named(node, f'{prefix}{node.name}.')
    elif isinstance(node, _FUNCTIONS):
      yield f'{prefix}{node.name}', node


def plant(fault: planted_faults.Fault) -> Planted:
  """The file of a fault, with the fault.

  Raises:
    PlantError: no function of this name has the text once, or several have.
  """
  if fault.function is None:  # A new line at the top of a module.
    (path,) = (ROOT / 'official_ext').rglob(fault.module or '')
    return Planted(path.relative_to(ROOT), path.read_text(encoding='utf-8') + f'\n{fault.new}\n')
  old, new = (textwrap.dedent(text).strip('\n') for text in (fault.old, fault.new))
  candidates = [
    (path, segment) for path, segment in _functions().get(fault.function, ()) if _unindented(segment).count(old) == 1
  ]
  if len(candidates) != 1:
    raise PlantError(f'{fault.name}: {len(candidates)} functions {fault.function} have once: {old!r}')
  ((path, segment),) = candidates
  text = path.read_text(encoding='utf-8')
  if text.count(segment) != 1:
    raise PlantError(f'{fault.name}: {path}: {fault.function} is there {text.count(segment)} times')
  changed = _unindented(segment).replace(old, new)
  indentation = segment[: len(segment) - len(segment.lstrip(' '))]
  content = text.replace(segment, textwrap.indent(changed, indentation))
  ast.parse(content)
  return Planted(path.relative_to(ROOT), content)


def _unindented(segment: str) -> str:
  return textwrap.dedent(segment)


@functools.cache
def tests_by_name() -> dict[str, list[pathlib.Path]]:
  """The files with a test function, by its name."""
  found: dict[str, list[pathlib.Path]] = {}
  for path in sorted((ROOT / 'tests').rglob('*_test.py')):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, _FUNCTIONS) and node.name.startswith('test_'):
        found.setdefault(node.name, []).append(path.relative_to(ROOT))
  return found


def _copy(folder: pathlib.Path) -> None:
  """Makes a copy of the project's files in an empty folder, as links: nothing may write into one of them."""
  listed = subprocess.run(
    ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=ROOT, capture_output=True, check=True
  )
  for name in listed.stdout.decode().split('\0'):
    if name and (ROOT / name).is_file():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      os.link(ROOT / name, folder / name)


def run(fault: planted_faults.Fault | None, tests: tuple[str, ...]) -> tuple[str, float, str]:
  """Runs tests in a copy, with a fault or without.

  Returns:
    ('found', 'MISSED' or 'ERROR', the seconds it took, pytest's last lines).
  """
  start = time.monotonic()
  files = sorted({str(path) for name in tests for path in tests_by_name()[name]})
  with tempfile.TemporaryDirectory(prefix='planted-', dir=ROOT.parent) as name:
    folder = pathlib.Path(name)
    _copy(folder)
    if fault is not None:
      planted = plant(fault)
      (folder / planted.path).unlink()  # It is a link to the original.
      (folder / planted.path).write_text(planted.content, encoding='utf-8')
    words = ' or '.join(tests)
    command = [
      sys.executable,
      '-m',
      'pytest',
      '-q',
      '-x',
      '-p',
      'no:xdist',
      '-p',
      'no:cacheprovider',
      '-k',
      words,
      *files,
    ]
    environment = {**os.environ, 'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
    try:
      done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False
      )
      status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
      status, output = 1, f'no end after {_MAX_SECONDS} s'
  outcome = {0: 'MISSED', 1: 'found'}.get(status, 'ERROR')
  return outcome, time.monotonic() - start, '\n'.join(output.strip().splitlines()[-8:])


def main(arguments: list[str] | None = None) -> int:
  """Prints a line for each fault, and how many were found. Returns 1 if one was not."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='*', help='of faults; all by default')
  parser.add_argument('--unchanged', action='store_true', help='run the tests without the faults: they must pass')
  parser.add_argument('--jobs', type=int, default=2)
  options = parser.parse_args(arguments)
  known = {fault.name: fault for fault in planted_faults.FAULTS}
  unknown = sorted(set(options.names) - set(known))
  if unknown:
    parser.error(f'no such faults: {", ".join(unknown)}; there are {", ".join(known)}')
  faults = [known[name] for name in options.names] or list(known.values())
  if options.unchanged:
    outcome, seconds, output = run(None, tuple(sorted({name for fault in faults for name in fault.tests})))
    print(f'{"passed" if outcome == "MISSED" else "FAILED"} in {seconds:.0f} s\n{output}')
    return int(outcome != 'MISSED')
  found = 0
  with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
    for fault, (outcome, seconds, output) in zip(faults, pool.map(lambda fault: run(fault, fault.tests), faults)):
      print(f'{outcome:7} {seconds:4.0f} s  {fault.name}: {fault.promise}', flush=True)
      if outcome != 'found':
        print(textwrap.indent(output, '    '), flush=True)
      found += outcome == 'found'
  print(f'{found} of {len(faults)} found')
  return int(found < len(faults))


if __name__ == '__main__':
  sys.exit(main())
