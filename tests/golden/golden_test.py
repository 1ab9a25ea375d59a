"""The resolved configuration of every experiment of this repository: a changed default shows up in review.

`python tests/golden/golden_test.py` writes the files anew.
"""

import pathlib
import sys
import types

_FOLDER = pathlib.Path(__file__).resolve().parent
if __name__ == '__main__':
  sys.path.insert(0, str(_FOLDER.parent.parent))

import official_ext  # noqa: E402, F401
from official_ext.base import config_text  # noqa: E402
from official_ext.training.config import parser  # noqa: E402
import registry_imports  # noqa: E402, F401


def resolved():
  """The configurations of this repository's experiments as YAML, by file name."""
  files = {}
  for name in parser.experiment_names():
    if parser.factory_of(name).__module__.startswith('experiments.'):
      params = parser.parse_configuration(types.SimpleNamespace(experiment=name), print_return=False)
      files[name.replace('/', '_') + '.yaml'] = config_text.dump(params.as_dict())
  return files


def test_resolved_configurations_are_as_recorded():
  files = resolved()
  assert files
  assert sorted(files) == sorted(path.name for path in _FOLDER.glob('*.yaml'))
  for name, text in files.items():
    assert (_FOLDER / name).read_text() == text, f'{name} differs: python {pathlib.Path(__file__)} writes it anew'


def write():
  """Writes all files anew, and removes those of experiments that are gone."""
  for path in _FOLDER.glob('*.yaml'):
    path.unlink()
  for name, text in resolved().items():
    (_FOLDER / name).write_text(text)
    print(_FOLDER / name)


if __name__ == '__main__':
  write()
