"""The curve of points that are all there."""

import numpy as np

from official_ext.operations.curves import decimation


def decimate(
  x: np.ndarray, y: np.ndarray, first: float, last: float, buckets: int, log: bool = False
) -> decimation.Curve:
  """See `decimation.Decimation`."""
  known = x[np.isfinite(x) & (x > 0)] if log else x
  made = decimation.Decimation(first, last, buckets, log, float(known.min()) if len(known) else None)
  made.add(x, y)
  return made.curve()
