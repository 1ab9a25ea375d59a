"""Checks of this machine and environment: `official-ext doctor`. TensorFlow is imported in another process.

They cover Python, the packages that this library requires, its extras, whether TensorFlow can be imported, memory,
disk, ports, and GPUs: the driver, compute capabilities, and the CUDA libraries that TensorFlow loads. Not tested on
GPUs.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import email.message
import functools
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from packaging import requirements
from packaging import specifiers

from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import cache

OK, NOTE, PROBLEM = 'ok', 'note', 'problem'


@dataclasses.dataclass(frozen=True)
class CheckResult:
  """One line of `official-ext doctor`.

  Attributes:
    name: the subject, such as `gpu`.
    level: `OK`; `NOTE`, such as an extra that is not installed; or `PROBLEM`.
    text: the result.
    fix: how to fix it; '' if there is nothing to fix.
  """

  name: str
  level: str
  text: str
  fix: str = ''

  def __str__(self) -> str:
    return f'{self.level:<8} {self.name:<11} {self.text}' + (f'; {self.fix}' if self.fix else '')


def result_ok(name: str, text: str) -> CheckResult:
  """A check that found what it expects."""
  return CheckResult(name, OK, text)


def result_note(name: str, text: str, fix: str = '') -> CheckResult:
  """A result that limits nothing, but is worth a line."""
  return CheckResult(name, NOTE, text, fix)


def result_problem(name: str, text: str, fix: str = '') -> CheckResult:
  """A result that must be fixed."""
  return CheckResult(name, PROBLEM, text, fix)


_GB = 1e9
MIN_MEMORY, MIN_DISK = 3 * _GB, 2 * _GB  # TensorFlow and a small model take about 1 GB of memory.
CONSOLE_PORT = 8420


def check_memory(least: float = MIN_MEMORY) -> CheckResult:
  """Checks the available memory.

  Args:
    least: bytes.
  """
  found = hardware.read_memory()
  if found is None:
    return result_note('memory', 'unknown: there is no /proc/meminfo')
  limit = ' (the limit of its cgroup)' if found.is_limited else ''
  text = f'{found.available / _GB:.1f} of {found.total / _GB:.1f} GB available{limit}'
  if found.available < least:
    return result_problem('memory', text, f'end other programs: {least / _GB:g} GB are needed')
  return result_ok('memory', text)


def check_disk(folder: str = '', least: float = MIN_DISK) -> Iterator[CheckResult]:
  """Checks that the folders in which runs write have space and can be written.

  Args:
    folder: of the runs; '' for the current one. Temporary files and caches are checked too.
    least: bytes.
  """
  for place in dict.fromkeys(map(_existing_folder, (folder or os.getcwd(), tempfile.gettempdir(), cache.root()))):
    free = shutil.disk_usage(place).free
    text = f'{place}: {free / _GB:.1f} GB free'
    if not os.access(place, os.W_OK | os.X_OK):
      yield result_problem('disk', f'{place}: cannot be written', f'chmod u+rwx {place}, or another folder')
    elif free < least:
      fix = f'free {least / _GB:g} GB, or use a folder of another disk'
      yield result_problem('disk', text, fix)
    else:
      yield result_ok('disk', text)


def check_ports(console: int = CONSOLE_PORT) -> CheckResult:
  """Checks that loopback ports can be opened, which workers and the console need.

  Args:
    console: the port of the console.
  """
  try:
    _listen(0)
  except OSError as error:
    fix = 'allow loopback connections in this container or sandbox'
    return result_problem('ports', f'127.0.0.1: cannot listen: {error.strerror}', fix)
  try:
    _listen(console)
  except OSError as error:
    text = f"{console}, the console's default, cannot be used: {error.strerror}"
    return result_note('ports', text, 'official-ext console runs --port=0')
  return result_ok('ports', f'127.0.0.1 can listen; {console} is free')


def _listen(port: int) -> None:
  with socket.socket() as found:
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(('127.0.0.1', port))
    found.listen()


def _existing_folder(folder: str) -> str:
  """A folder, or the nearest above it that exists."""
  path = pathlib.Path(folder).absolute()
  return str(next(each for each in (path, *path.parents) if each.is_dir()))


_DISTRIBUTION = 'official-ext'
_PROBE = 'official_ext.cli.tensorflow_probe'
_TEST_EXTRA = 'test'  # For contributors.
_GPU_EXTRA = 'gpu'  # Checked if there is a GPU.


def check_python(supported: str | None = None, version: Sequence[int] = sys.version_info[:3]) -> CheckResult:
  """Checks the version of Python.

  Args:
    supported: versions, as `>=3.11,<3.14`; None: from this library's metadata.
    version: major, minor, patch.
  """
  text = '.'.join(map(str, version))
  if supported is None:
    supported = _metadata().get('Requires-Python') or ''
  if text in specifiers.SpecifierSet(supported):
    return result_ok('python', f'{text} at {sys.executable}')
  return result_problem('python', f'{text} is not supported', f'install a Python {supported}')


def check_packages(required: Sequence[str] | None = None) -> Iterator[CheckResult]:
  """Checks that the required packages are installed in supported versions.

  Args:
    required: requirements as in metadata; None: of this library without its extras.
  """
  if required is None:
    required = _metadata().get_all('Requires-Dist') or ()
  parsed = [requirements.Requirement(text) for text in required]
  wanted = [each for each in parsed if each.marker is None or each.marker.evaluate({'extra': ''})]
  wrong = [each for each in wanted if not _is_met(each)]
  for each in wrong:
    found = package_imports.version(each.name)
    text = f'{each.name} {found} is not in {each.specifier}' if found else f'{each.name} is not installed'
    yield result_problem('packages', text, f"pip install '{each.name}{each.specifier}'")
  if not wrong:
    yield result_ok('packages', f'all {len(wanted)} required packages')


def check_extras() -> Iterator[CheckResult]:
  """Lists the extras that are not installed: each is optional."""
  installed = []
  for extra in sorted(set(_metadata().get_all('Provides-Extra') or ()) - {_TEST_EXTRA, _GPU_EXTRA}):
    missing = missing_of_extra(_DISTRIBUTION, extra)
    if missing:
      install = f"pip install '{_DISTRIBUTION}[{extra}]'"
      yield result_note('extras', f'{extra}: {", ".join(missing)} not installed', install)
    else:
      installed.append(extra)
  yield result_ok('extras', f'installed: {", ".join(installed) or "none"}')


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


def probe_tensorflow(seconds: float) -> tuple[CheckResult, json_values.JsonObject | None]:
  """Imports TensorFlow in another process.

  Args:
    seconds: the time limit.

  Returns:
    The finding, and the output of tensorflow_probe.py; None if the import failed.
  """
  reinstall = "pip install --force-reinstall 'tensorflow>=2.20,<2.22'"
  try:
    done = subprocess.run(
      [sys.executable, '-m', _PROBE], capture_output=True, text=True, timeout=seconds, check=False, errors='replace'
    )
  except subprocess.TimeoutExpired:
    fix = 'a cold disk may need longer: --seconds=300; otherwise look for a driver that hangs: nvidia-smi'
    return result_problem('tensorflow', f'its import takes more than {seconds:g} s', fix), None
  try:
    values = json.loads(done.stdout.splitlines()[-1])
  except (IndexError, ValueError):
    lines = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
    if done.returncode < 0:
      reinstall = 'a processor without AVX cannot run it; otherwise ' + reinstall
      lines = [f'the process was ended by signal {-done.returncode}']
    return result_problem('tensorflow', f'cannot be imported: {lines[-1]}', reinstall), None
  text = f'{values["version"]}, imported in {values["seconds"]:.1f} s'
  return result_ok('tensorflow', text), values


@functools.cache
def _metadata() -> email.message.Message:
  """This library's metadata; empty for a source tree on the path that is not installed."""
  try:
    return importlib.metadata.distribution(_DISTRIBUTION).metadata  # type: ignore[return-value]
  except importlib.metadata.PackageNotFoundError:
    return email.message.Message()


def _is_met(requirement: requirements.Requirement) -> bool:
  found = package_imports.version(requirement.name)
  return found is not None and requirement.specifier.contains(found, prereleases=True)


_QUERY = ('nvidia-smi', '--query-gpu=name,driver_version,compute_cap,memory.total', '--format=csv,noheader,nounits')
_MIN_DRIVER = {'12': 525, '11': 450}  # By CUDA's major version, https://docs.nvidia.com/deploy/cuda-compatibility.
_CAPABILITY = re.compile(r'(?:sm|compute)_(\d+)')


class Gpu(NamedTuple):
  """A GPU, as nvidia-smi describes it; `capability` is 90 for 9.0, `check_memory` is in MiB."""

  name: str
  driver: str
  capability: int
  memory: str


def read_gpus(seconds: float = 10.0) -> tuple[list[Gpu], list[CheckResult]]:
  """Asks nvidia-smi for the GPUs of the machine.

  Args:
    seconds: the time limit.

  Returns:
    The GPUs, and problems of the driver.
  """
  has_driver = bool(hardware.all_gpus())
  try:
    done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=seconds, check=False)
  except FileNotFoundError:
    fix = 'install nvidia-utils of the same version as the driver'
    found = [result_problem('driver', 'the machine has NVIDIA GPUs, but no nvidia-smi', fix)]
    return [], found if has_driver else []
  except subprocess.TimeoutExpired:
    text = f'nvidia-smi does not answer in {seconds:g} s'
    return [], [result_problem('driver', text, 'reboot, or reload the driver')]
  if done.returncode:
    reason = ' '.join((done.stdout + done.stderr).split())
    return [], [result_problem('driver', f'nvidia-smi: {reason}', 'reinstall the driver, or reboot')]
  rows = [[cell.strip() for cell in line.split(',')] for line in done.stdout.splitlines()]
  return [
    Gpu(name, driver, int(float(capability) * 10 + 0.5), memory)
    for name, driver, capability, memory in (row for row in rows if len(row) == 4)
    if re.fullmatch(r'\d+(\.\d+)?', capability)
  ], []


def check_gpus(gpus: Sequence[Gpu], tensorflow: Mapping[str, Any] | None) -> Iterator[CheckResult]:
  """Compares GPUs with the targets of TensorFlow's build, and with the GPUs that it finds.

  Args:
    gpus: of the machine.
    tensorflow: `cuda`, the version of CUDA that it is built for, '' for none; `capabilities`, such as `sm_80`; `gpus`,
      the number that it finds. None: it cannot be imported.
  """
  if not gpus:
    yield result_ok('gpu', 'none; training runs on the CPU')
    return
  values = tensorflow or {}
  cuda = str(values.get('cuda') or '')
  yield _check_driver(gpus[0].driver, cuda)
  built = sorted(int(number) for text in values.get('capabilities', ()) for number in _CAPABILITY.findall(text))
  for gpu in gpus:
    text = f'{gpu.name}, {gpu.memory} MiB, compute capability {_dotted(gpu.capability)}'
    if built and not built[0] <= gpu.capability <= built[-1]:
      text += f': TensorFlow {values["version"]} is built for {_dotted(built[0])} to {_dotted(built[-1])}'
      fix = 'XLA cannot target it: --set=runtime.enable_xla=false, or CUDA_VISIBLE_DEVICES= for the CPU'
      yield result_problem('gpu', text, fix)
    else:
      yield result_ok('gpu', text)
  visible = len(gpus) if os.environ.get(hardware.CUDA_VARIABLE) is None else len(hardware.visible_gpus())
  if tensorflow is not None:
    yield _found_by_tensorflow(values, cuda, visible)


def _check_driver(version: str, cuda: str) -> CheckResult:
  least = _MIN_DRIVER.get(cuda.partition('.')[0], 0)
  if int(version.partition('.')[0]) < least:
    text = f'{version} is too old for CUDA {cuda}, for which TensorFlow is built'
    return result_problem('driver', text, f'install driver {least} or later')
  return result_ok('driver', version)


def _found_by_tensorflow(tensorflow: Mapping[str, Any], cuda: str, visible: int) -> CheckResult:
  count = int(tensorflow.get('gpus', 0))
  if count >= visible:
    return result_ok('cuda', f'TensorFlow finds {count} of {visible} visible GPUs')
  text = f'requested {visible} GPUs, TensorFlow finds {count}'
  if not cuda:
    return result_problem('cuda', f'{text}: it is built without CUDA', "pip install 'tensorflow[and-cuda]'")
  missing = missing_of_extra('tensorflow', 'and-cuda')
  if missing:
    text += f': missing CUDA libraries: {", ".join(missing)}'
  return result_problem('cuda', text, "pip install 'official-ext[gpu]'")


def _dotted(capability: int) -> str:
  return f'{capability // 10}.{capability % 10}'
