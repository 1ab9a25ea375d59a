"""GPUs: the driver, compute capabilities, and the CUDA libraries that TensorFlow loads. Not tested on GPUs."""

from collections.abc import Iterator, Mapping, Sequence
import os
import re
import subprocess
from typing import Any, NamedTuple

from official_ext.base.processes import visible_gpus
from official_ext.operations.doctor import check_results
from official_ext.operations.doctor import software

_QUERY = ('nvidia-smi', '--query-gpu=name,driver_version,compute_cap,memory.total', '--format=csv,noheader,nounits')
_MIN_DRIVER = {'12': 525, '11': 450}  # By CUDA's major version, https://docs.nvidia.com/deploy/cuda-compatibility.
_CAPABILITY = re.compile(r'(?:sm|compute)_(\d+)')


class Gpu(NamedTuple):
  """A GPU, as nvidia-smi describes it; `capability` is 90 for 9.0, `memory` is in MiB."""

  name: str
  driver: str
  capability: int
  memory: str


def read(seconds: float = 10.0) -> tuple[list[Gpu], list[check_results.Result]]:
  """Asks nvidia-smi for the GPUs of the machine.

  Args:
    seconds: the time limit.

  Returns:
    The GPUs, and what is wrong with the driver.
  """
  has_driver = bool(visible_gpus.of_machine())
  try:
    done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=seconds, check=False)
  except FileNotFoundError:
    fix = 'install nvidia-utils of the same version as the driver'
    found = [check_results.problem('driver', 'the machine has NVIDIA GPUs, but no nvidia-smi', fix)]
    return [], found if has_driver else []
  except subprocess.TimeoutExpired:
    text = f'nvidia-smi does not answer in {seconds:g} s'
    return [], [check_results.problem('driver', text, 'reboot, or reload the driver')]
  if done.returncode:
    reason = ' '.join((done.stdout + done.stderr).split())
    return [], [check_results.problem('driver', f'nvidia-smi: {reason}', 'reinstall the driver, or reboot')]
  rows = [[cell.strip() for cell in line.split(',')] for line in done.stdout.splitlines()]
  return [
    Gpu(name, driver, int(float(capability) * 10 + 0.5), memory)
    for name, driver, capability, memory in (row for row in rows if len(row) == 4)
    if re.fullmatch(r'\d+(\.\d+)?', capability)
  ], []


def check(gpus: Sequence[Gpu], tensorflow: Mapping[str, Any] | None) -> Iterator[check_results.Result]:
  """Compares GPUs with what TensorFlow is built for, and with those that it finds.

  Args:
    gpus: of the machine.
    tensorflow: `cuda`, the version of CUDA that it is built for, '' for none; `capabilities`, such as `sm_80`; `gpus`,
      the number that it finds. None: it cannot be imported.
  """
  if not gpus:
    yield check_results.ok('gpu', 'none; training runs on the CPU')
    return
  values = tensorflow or {}
  cuda = str(values.get('cuda') or '')
  yield _driver(gpus[0].driver, cuda)
  built = sorted(int(number) for text in values.get('capabilities', ()) for number in _CAPABILITY.findall(text))
  for gpu in gpus:
    text = f'{gpu.name}, {gpu.memory} MiB, compute capability {_dotted(gpu.capability)}'
    if built and not built[0] <= gpu.capability <= built[-1]:
      text += f': TensorFlow {values["version"]} is built for {_dotted(built[0])} to {_dotted(built[-1])}'
      fix = 'XLA cannot target it: --set=runtime.enable_xla=false, or CUDA_VISIBLE_DEVICES= for the CPU'
      yield check_results.problem('gpu', text, fix)
    else:
      yield check_results.ok('gpu', text)
  visible = len(gpus) if os.environ.get(visible_gpus.VARIABLE) is None else len(visible_gpus.names())
  if tensorflow is not None:
    yield _found_by_tensorflow(values, cuda, visible)


def _driver(version: str, cuda: str) -> check_results.Result:
  least = _MIN_DRIVER.get(cuda.partition('.')[0], 0)
  if int(version.partition('.')[0]) < least:
    text = f'{version} is too old for CUDA {cuda}, for which TensorFlow is built'
    return check_results.problem('driver', text, f'install driver {least} or later')
  return check_results.ok('driver', version)


def _found_by_tensorflow(tensorflow: Mapping[str, Any], cuda: str, visible: int) -> check_results.Result:
  count = int(tensorflow.get('gpus', 0))
  if count >= visible:
    return check_results.ok('cuda', f'TensorFlow finds {count} of {visible} visible GPUs')
  text = f'requested {visible} GPUs, TensorFlow finds {count}'
  if not cuda:
    return check_results.problem('cuda', f'{text}: it is built without CUDA', "pip install 'tensorflow[and-cuda]'")
  missing = software.missing_of_extra('tensorflow', 'and-cuda')
  if missing:
    text += f': missing CUDA libraries: {", ".join(missing)}'
  return check_results.problem('cuda', text, "pip install 'official-ext[gpu]'")


def _dotted(capability: int) -> str:
  return f'{capability // 10}.{capability % 10}'
