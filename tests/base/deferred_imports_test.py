import inspect
import sys

import pytest

from official_ext.base import package_imports

DEFERRED = {'importer_of_many': ('heavy_package', 'heavy_package.part', 'heavy_package.part.answer', 'package_nowhere')}


@pytest.fixture
def importer(tmp_path, monkeypatch):
  """The name of a module that imports a package, a module and a function of it, and a package that does not exist."""
  package = tmp_path / 'heavy_package'
  package.mkdir()
  (package / '__init__.py').write_text('LIMIT = 3\n__version__ = "1.2"\n')
  (package / 'part.py').write_text('def answer(number):\n  return number + 39\n')
  (tmp_path / 'importer_of_many.py').write_text(
    'import heavy_package\n'
    'import heavy_package.part\n'
    'from heavy_package import part\n'
    'from heavy_package.part import answer\n'
    'try:\n  import package_nowhere\nexcept ImportError:\n  package_nowhere = None\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(sys, 'meta_path', list(sys.meta_path))
  package_imports.defer_imports(DEFERRED)
  yield 'importer_of_many'
  for name in [name for name in sys.modules if name.startswith(('heavy_package', 'importer_of_many'))]:
    del sys.modules[name]


def test_nothing_is_imported_until_it_is_used(importer):
  module = __import__(importer)
  assert not [name for name in sys.modules if name.startswith('heavy_package')]
  assert module.package_nowhere is None, 'a package that is not installed has no stand-in'
  assert not hasattr(module.heavy_package, '__file__') and inspect.getmodule(test_nothing_is_imported_until_it_is_used)
  assert not [name for name in sys.modules if name.startswith('heavy_package')], 'inspect asks for places'
  assert module.heavy_package.LIMIT == 3 and sys.modules['heavy_package'].LIMIT == 3


@pytest.mark.parametrize(
  'use',
  [
    lambda module: module.answer(3) == 42,
    lambda module: module.part.answer(3) == 42,
    lambda module: module.heavy_package.part.answer(3) == 42,
    lambda module: module.heavy_package.__version__ == '1.2',
  ],
)
def test_a_stand_in_imports_its_package(importer, use):
  assert use(__import__(importer))
  assert 'heavy_package' in sys.modules


def test_who_imports_the_package_afterwards_gets_it(importer):
  module = __import__(importer)
  import heavy_package.part  # pylint: disable=g-import-not-at-top

  assert heavy_package.LIMIT == 3 and heavy_package is not module.heavy_package
  heavy_package.LIMIT = 4
  assert module.heavy_package.LIMIT == 4, 'the stand-in asks the package each time'


def test_a_use_during_the_import_imports_it(importer, tmp_path):
  (tmp_path / 'importer_of_many.py').write_text('import heavy_package\nLIMIT = heavy_package.LIMIT\n')
  assert __import__(importer).LIMIT == 3
  assert sys.modules['heavy_package'].__version__ == '1.2'


def test_a_package_that_is_imported_already_stays(importer):
  before = __import__('heavy_package')
  assert __import__(importer).heavy_package is before


def test_a_missing_attribute_is_named(importer):
  with pytest.raises(AttributeError, match="'heavy_package' has no attribute 'nothing'"):
    _ = __import__(importer).heavy_package.nothing
