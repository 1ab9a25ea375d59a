"""TensorBoard files of a run whose disk fails."""

import os

from official_ext.base import errors
from official_ext.training.writers import tensorboard


def test_a_file_that_is_begun_after_a_failure_is_read_after_the_first(tmp_path):
  # The name of a file begins with the second; those of one second are numbered 8, 9, 10, and TensorBoard sorts letters.
  for number in range(12):
    folder = tmp_path / f'{number}'
    file = tensorboard.SummaryFile(str(folder))
    file.scalar('loss', 1.0, 1)
    file.flush()
    (first,) = os.listdir(folder)
    if not first.endswith('9.v2'):
      file.close()
      continue
    file.failure = errors.StorageError('full')
    file.scalar('loss', 2.0, 2)
    file.flush()
    (second,) = set(os.listdir(folder)) - {first}
    file.close()
    assert first < second
    break
  else:
    raise AssertionError('no file had the number 9')
