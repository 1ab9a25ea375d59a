"""Whether the collector pauses during imports, and what it leaves alone afterwards."""

import gc
import sys

import pytest

from official_ext.base import uncollected


@pytest.fixture(autouse=True)
def unfrozen():
  gc.unfreeze()
  yield
  gc.unfreeze()
  gc.enable()


def test_the_collector_pauses_and_goes_on_after_an_error():
  with pytest.raises(ImportError), uncollected.uncollected():
    assert not gc.isenabled()
    raise ImportError
  assert gc.isenabled()


def test_a_program_that_has_paused_it_keeps_it_paused():
  gc.disable()
  with uncollected.uncollected():
    pass
  assert not gc.isenabled()


def test_what_an_import_of_tensorflow_has_made_is_left_alone(monkeypatch):
  with uncollected.uncollected():
    pass
  assert not gc.get_freeze_count()  # Of another import, garbage is not kept.
  module = sys.modules.pop('tensorflow', sys)
  with uncollected.uncollected():
    monkeypatch.setitem(sys.modules, 'tensorflow', module)
  assert gc.get_freeze_count() > 1000
