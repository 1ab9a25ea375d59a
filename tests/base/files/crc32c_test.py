"""CRC32C by the examples of its RFC, and the same in both ways of computing it."""

import numpy as np
import pytest

from official_ext.base.files import tf_records


@pytest.mark.parametrize(('data', 'crc'), [(b'', 0), (b'123456789', 0xE3069283), (b'\0' * 32, 0x8A9136AA)])
def test_the_checksums_of_rfc_3720(data, crc):
  assert tf_records.crc32c(data) == crc


def test_short_and_long_data_have_the_same_checksum(monkeypatch):
  data = np.random.default_rng(0).integers(256, size=5000, dtype=np.uint8).tobytes()
  parts = [data[:length] for length in (4, 63, 64, 65, 2047, 2048, 2049, 5000)]
  found = []
  for shortest in (4, len(data) + 1):  # By numpy, byte by byte.
    monkeypatch.setattr(tf_records, '_SHORT', shortest)
    found.append(list(map(tf_records.crc32c, parts)))
  assert found[0] == found[1] and len(set(found[0])) == len(parts)
