"""`operations` runs on machines without TensorFlow, and starts without importing it."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

_IMPORT_ALL = """
import importlib, pkgutil
from official_ext import operations

names = [module.name for module in pkgutil.walk_packages(operations.__path__, 'official_ext.operations.')]
for name in names:
  importlib.import_module(name)
print(len(names))
"""


def test_every_module_is_imported_where_tensorflow_cannot_be():
  path = os.pathsep.join([str(ROOT / 'tests/no_tensorflow'), str(ROOT)])
  environment = {**os.environ, 'PYTHONPATH': path}
  command = [sys.executable, '-c', _IMPORT_ALL]
  done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
  assert done.returncode == 0, done.stderr
  modules = [path for path in (ROOT / 'official_ext/operations').rglob('*.py') if path.name != '__init__.py']
  assert int(done.stdout) >= len(modules) > 50
