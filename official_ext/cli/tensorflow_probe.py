"""Imports TensorFlow, and prints what `official-ext doctor` needs as one line of JSON: `python -m` runs it."""

import json
import time


def main() -> None:
  """Prints `version`, `seconds` of the import, `cuda`, `capabilities` and `gpus`, the number that it finds."""
  begun = time.monotonic()
  import tensorflow as tf  # pylint: disable=g-import-not-at-top  # Its time is measured.

  seconds = time.monotonic() - begun
  build = tf.sysconfig.get_build_info()
  values = {
    'version': tf.__version__,
    'seconds': seconds,
    'cuda': build.get('cuda_version') or '',
    'capabilities': list(build.get('cuda_compute_capabilities') or ()),
    'gpus': len(tf.config.list_physical_devices('GPU')),
  }
  print(json.dumps(values))


if __name__ == '__main__':
  main()
