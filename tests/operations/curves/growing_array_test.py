"""Arrays that grow, in memory and in files."""

import os

import numpy as np
import pytest

from official_ext.operations.curves import event_columns


@pytest.mark.parametrize('dtype', [np.int8, np.int32, np.int64, np.float64])
@pytest.mark.parametrize('spills', [True, False])
def test_it_has_what_was_appended_and_earlier_views_stay(tmp_path, monkeypatch, dtype, spills):
  monkeypatch.setattr(event_columns, 'SPILL_BYTES', 1000)
  made = event_columns.GrowingArray(dtype, str(tmp_path / 'new') if spills else None)
  rng, expected, views = np.random.default_rng(0), np.empty(0, dtype), []
  for _ in range(40):
    part = rng.integers(-100, 100, rng.integers(0, 700)).astype(dtype)
    made.append(part)
    expected = np.concatenate([expected, part])
    views.append((made.array, expected))
    made.release()
  for array, values in views:
    assert array.dtype == dtype and np.array_equal(array, values)
  assert len(made) == len(expected) and made.is_spilled == spills
  assert made.nbytes == 0 if spills else made.nbytes >= expected.nbytes
  assert not spills or os.listdir(tmp_path / 'new') == []  # The file has no name: it goes with the process.


def test_without_a_place_for_files_it_stays_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(event_columns, 'SPILL_BYTES', 1000)
  (tmp_path / 'file').touch()
  made = event_columns.GrowingArray(np.int64, str(tmp_path / 'file'))
  for start in range(0, 3000, 300):
    made.append(np.arange(start, start + 300))
  assert not made.is_spilled and np.array_equal(made.array, np.arange(3000))


@pytest.mark.parametrize('fails_at', [1, 2, 5])
def test_on_a_full_disk_nothing_is_lost(tmp_path, monkeypatch, fails_at):
  monkeypatch.setattr(event_columns, 'SPILL_BYTES', 1000)
  write, calls = os.pwrite, []

  def failing(*arguments):
    calls.append(arguments)
    if len(calls) >= fails_at:
      raise OSError(28, 'No space left on device')
    return write(*arguments)

  monkeypatch.setattr(os, 'pwrite', failing)
  made = event_columns.GrowingArray(np.int64, str(tmp_path))
  for start in range(0, 3000, 300):
    made.append(np.arange(start, start + 300))
    assert np.array_equal(made.array, np.arange(start + 300))
  assert not made.is_spilled
