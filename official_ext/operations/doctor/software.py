"""Python, the packages that this library requires, its extras, and whether TensorFlow can be imported."""

from collections.abc import Iterator, Sequence
import email.message
import functools
import importlib.metadata
import json
import subprocess
import sys

from packaging import requirements
from packaging import specifiers

from official_ext.base import json_types
from official_ext.base import optional_packages
from official_ext.operations.doctor import check_results

_DISTRIBUTION = 'official-ext'
_PROBE = 'official_ext.cli.tensorflow_probe'
_TEST = 'test'  # For contributors.
_GPU = 'gpu'  # gpus.py checks it where there is a GPU.


def python(supported: str | None = None, version: Sequence[int] = sys.version_info[:3]) -> check_results.Result:
  """Checks the version of Python.

  Args:
    supported: versions, as `>=3.11,<3.14`; None: those that this library's metadata states.
    version: major, minor, patch.
  """
  text = '.'.join(map(str, version))
  if supported is None:
    supported = _metadata().get('Requires-Python') or ''
  if text in specifiers.SpecifierSet(supported):
    return check_results.ok('python', f'{text} at {sys.executable}')
  return check_results.problem('python', f'{text} is not supported', f'install a Python {supported}')


def packages(required: Sequence[str] | None = None) -> Iterator[check_results.Result]:
  """Checks that the required packages are installed in supported versions.

  Args:
    required: requirements as in metadata; None: those of this library without its extras.
  """
  if required is None:
    required = _metadata().get_all('Requires-Dist') or ()
  parsed = [requirements.Requirement(text) for text in required]
  wanted = [each for each in parsed if each.marker is None or each.marker.evaluate({'extra': ''})]
  wrong = [each for each in wanted if not _is_met(each)]
  for each in wrong:
    found = optional_packages.version(each.name)
    text = f'{each.name} {found} is not in {each.specifier}' if found else f'{each.name} is not installed'
    yield check_results.problem('packages', text, f"pip install '{each.name}{each.specifier}'")
  if not wrong:
    yield check_results.ok('packages', f'all {len(wanted)} required packages')


def extras() -> Iterator[check_results.Result]:
  """Lists the extras that are not installed: each is optional."""
  installed = []
  for extra in sorted(set(_metadata().get_all('Provides-Extra') or ()) - {_TEST, _GPU}):
    missing = missing_of_extra(_DISTRIBUTION, extra)
    if missing:
      install = f"pip install '{_DISTRIBUTION}[{extra}]'"
      yield check_results.note('extras', f'{extra}: {", ".join(missing)} not installed', install)
    else:
      installed.append(extra)
  yield check_results.ok('extras', f'installed: {", ".join(installed) or "none"}')


def missing_of_extra(distribution: str, extra: str) -> list[str]:
  """Returns the packages of an extra that are not installed in a supported version."""
  try:
    parsed = map(requirements.Requirement, importlib.metadata.requires(distribution) or ())
  except importlib.metadata.PackageNotFoundError:
    return []
  # The marker of a package that every installation requires is not about extras.
  of_extra = [
    each for each in parsed if each.marker and each.marker.evaluate({'extra': extra}) and 'extra' in str(each.marker)
  ]
  return [each.name for each in of_extra if not _is_met(each)]


def probe_tensorflow(seconds: float) -> tuple[check_results.Result, json_types.JsonObject | None]:
  """Imports TensorFlow in another process.

  Args:
    seconds: the time limit.

  Returns:
    The finding, and what tensorflow_probe.py prints; None if the import failed.
  """
  reinstall = "pip install --force-reinstall 'tensorflow>=2.20,<2.22'"
  try:
    done = subprocess.run(
      [sys.executable, '-m', _PROBE], capture_output=True, text=True, timeout=seconds, check=False, errors='replace'
    )
  except subprocess.TimeoutExpired:
    fix = 'a cold disk may need longer: --seconds=300; otherwise look for a driver that hangs: nvidia-smi'
    return check_results.problem('tensorflow', f'its import takes more than {seconds:g} s', fix), None
  try:
    values = json.loads(done.stdout.splitlines()[-1])
  except (IndexError, ValueError):
    lines = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
    if done.returncode < 0:
      reinstall = 'a processor without AVX cannot run it; otherwise ' + reinstall
      lines = [f'the process was ended by signal {-done.returncode}']
    return check_results.problem('tensorflow', f'cannot be imported: {lines[-1]}', reinstall), None
  text = f'{values["version"]}, imported in {values["seconds"]:.1f} s'
  return check_results.ok('tensorflow', text), values


@functools.cache
def _metadata() -> email.message.Message:
  """This library's metadata; empty for a source tree on the path that is not installed."""
  try:
    return importlib.metadata.distribution(_DISTRIBUTION).metadata  # type: ignore[return-value]
  except importlib.metadata.PackageNotFoundError:
    return email.message.Message()


def _is_met(requirement: requirements.Requirement) -> bool:
  found = optional_packages.version(requirement.name)
  return found is not None and requirement.specifier.contains(found, prereleases=True)
