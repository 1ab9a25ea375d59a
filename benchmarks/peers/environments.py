"""The virtual environments of peers: the project's own, PyTorch's, and one for packages that must not be in either.

PyTorch's is the project's own unless BENCH_TORCH_PYTHON names an interpreter: on a machine with a GPU, PyTorch and
TensorFlow may want different CUDA libraries.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from benchmarks.peers import process

_FIND = (
  'import json, sys\n'
  'from importlib import metadata\n'
  'found = {}\n'
  'for name in sys.argv[1:]:\n'
  '  try: found[name] = metadata.version(name)\n'
  '  except metadata.PackageNotFoundError: pass\n'
  'print(json.dumps(found))'
)


@dataclasses.dataclass(frozen=True)
class Environment:
  """A Python with packages.

  Attributes:
    python: its interpreter.
    install: how one installs into it, up to the names of packages.
  """

  python: pathlib.Path
  install: str

  def versions(self, packages: Sequence[str]) -> dict[str, str]:
    """Those of the packages that are installed; none if there is no such environment."""
    if not self.python.exists():
      return {}
    found = subprocess.run(
      [str(self.python), '-c', _FIND, *packages], capture_output=True, text=True, check=True, cwd=process.ROOT
    )
    return json.loads(found.stdout)

  def missing(self, packages: Sequence[str]) -> str:
    """The command for packages that are not installed; '' if all are."""
    absent = [name for name in packages if name not in self.versions(packages)]
    return f'missing: {self.install} {" ".join(absent)}' if absent else ''


TORCH_PYTHON = os.environ.get('BENCH_TORCH_PYTHON') or sys.executable
_PEERS = process.ROOT / '.venv-peers/bin/python'

ENVIRONMENTS: Mapping[str, Environment] = {
  'project': Environment(pathlib.Path(sys.executable), '.venv/bin/pip install -c constraints.txt'),
  'torch': Environment(pathlib.Path(TORCH_PYTHON), f'{TORCH_PYTHON} -m pip install'),
  'peers': Environment(_PEERS, 'make .venv-peers, or .venv-peers/bin/pip install'),
}
