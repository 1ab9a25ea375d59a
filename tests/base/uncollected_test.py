"""Whether the collector pauses during imports, and what it leaves alone afterwards."""

import gc
import sys

import pytest

from official_ext.base import package_imports


@pytest.fixture(autouse=True)
def unfrozen():
  gc.unfreeze()
  yield
  gc.unfreeze()
  gc.enable()


def test_the_collector_pauses_and_continues_after_an_error():
  with pytest.raises(ImportError), package_imports.without_gc():
    assert not gc.isenabled()
    raise ImportError
  assert gc.isenabled()


def test_a_program_that_has_paused_it_keeps_it_paused():
  gc.disable()
  with package_imports.without_gc():
    pass
  assert not gc.isenabled()


def test_what_an_import_of_tensorflow_has_made_is_left_alone(monkeypatch):
  with package_imports.without_gc():
    pass
  assert not gc.get_freeze_count()  # Of another import, garbage is not kept.
  module = sys.modules.pop('tensorflow', sys)
  with package_imports.without_gc():
    monkeypatch.setitem(sys.modules, 'tensorflow', module)
  assert gc.get_freeze_count() > 1000
