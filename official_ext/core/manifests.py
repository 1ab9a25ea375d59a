"""What makes a checkpoint count: a manifest of its files, written last.

A checkpoint is the files `PREFIX.index` and `PREFIX.data-*`. `PREFIX.manifest.json` holds their sizes and SHA-256
sums, and one sum over itself, and is renamed into place when all of them are on disk. A save that was cut off has
none; damage shows when the files are held against it.
"""

import hashlib
import json
import os
from typing import Any, Dict, List, Optional

import tensorflow as tf

SUFFIX = '.manifest.json'
_CHUNK = 2**20


def write(prefix: str, **values: Any) -> None:
  """Writes the manifest of the checkpoint at `prefix`, whose files must be complete.

  Args:
    prefix: path of the checkpoint.
    **values: further entries, JSON values.
  """
  files = {}
  for path in files_of(prefix):
    _sync(path)
    files[os.path.basename(path)] = {'size': _size(path), 'sha256': _sha256(path)}
  content = {'files': files, **values}
  content['sha256'] = _sum_of(content)
  temporary = f'{prefix}{SUFFIX}.tmp'
  with tf.io.gfile.GFile(temporary, 'w') as f:
    f.write(json.dumps(content, separators=(',', ':')))  # No byte without a meaning: damage to any of them shows.
  _sync(temporary)
  tf.io.gfile.rename(temporary, prefix + SUFFIX, overwrite=True)


def read(prefix: str) -> Dict[str, Any]:
  """The entries of a manifest.

  Raises:
    ValueError: it is damaged.
    tf.errors.NotFoundError: there is none.
  """
  with tf.io.gfile.GFile(prefix + SUFFIX, 'rb') as f:
    try:
      content = json.loads(f.read().decode())
      expected = content.pop('sha256')
    except (ValueError, KeyError, AttributeError, TypeError) as error:
      raise ValueError('its manifest is damaged') from error
  if expected != _sum_of(content):
    raise ValueError('its manifest is damaged')
  return content


def fingerprint(prefix: str) -> Optional[str]:
  """A sum that tells a checkpoint from any other; None where its manifest is missing or damaged."""
  try:
    return _sum_of(read(prefix))
  except (ValueError, tf.errors.OpError):
    return None


def find_damage(prefix: str) -> Optional[str]:
  """What is wrong with the checkpoint at `prefix`; None where every byte is as it was written."""
  try:
    files = read(prefix)['files']
  except (ValueError, tf.errors.OpError) as error:
    return str(error) if isinstance(error, ValueError) else 'it has no manifest'
  folder = os.path.dirname(prefix)
  for name, entry in sorted(files.items()):
    path = os.path.join(folder, name)
    try:
      size = _size(path)
      if size != entry['size']:
        return f'{name} has {size} bytes instead of {entry["size"]}'
      if _sha256(path) != entry['sha256']:
        return f'{name} is not what was written'
    except tf.errors.NotFoundError:
      return f'{name} is missing'
    except tf.errors.OpError as error:
      return f'{name} cannot be read: {error}'
  return None


def prefixes(directory: str, name: str = 'ckpt') -> List[str]:
  """Paths of the checkpoints in a folder that have a manifest, by step, oldest first."""
  paths = [path[:-len(SUFFIX)] for path in tf.io.gfile.glob(os.path.join(directory, f'{name}-*{SUFFIX}'))]
  return sorted((path for path in paths if path.rpartition('-')[2].isdigit()), key=step_of)


def step_of(prefix: str) -> int:
  """The step in a checkpoint's name, `ckpt-STEP`."""
  return int(prefix.rpartition('-')[2])


def files_of(prefix: str) -> List[str]:
  """Paths of the files that hold the checkpoint at `prefix`."""
  return sorted(tf.io.gfile.glob(f'{prefix}.index') + tf.io.gfile.glob(f'{prefix}.data-*'))


def remove(prefix: str) -> None:
  """Deletes a checkpoint, its manifest first: what is left of it half-way does not count."""
  for path in [prefix + SUFFIX, *files_of(prefix)]:
    try:
      tf.io.gfile.remove(path)
    except tf.errors.NotFoundError:
      pass


def remove_unfinished(directory: str, name: str = 'ckpt') -> None:
  """Deletes what saves that were cut off have left: the folders in which TensorFlow collects a checkpoint's parts."""
  for path in tf.io.gfile.glob(os.path.join(directory, f'{name}-*_temp')):
    tf.io.gfile.rmtree(path)


def remove_partial(prefix: str) -> None:
  """Deletes what a save that has failed has left at `prefix`, as far as that can be done."""
  try:
    if not tf.io.gfile.exists(prefix + SUFFIX):
      remove(prefix)
    for path in (f'{prefix}{SUFFIX}.tmp', f'{prefix}_temp'):
      if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)
  except (OSError, tf.errors.OpError):  # The failure itself is being told.
    pass


def set_aside(prefix: str) -> str:
  """Renames a damaged checkpoint to `PREFIX.broken`, with all its files. Returns the new prefix."""
  broken = f'{prefix}.broken'
  for path in [prefix + SUFFIX, *files_of(prefix)]:
    if tf.io.gfile.exists(path):
      tf.io.gfile.rename(path, broken + path[len(prefix):], overwrite=True)
  return broken


def _size(path: str) -> int:
  return tf.io.gfile.stat(path).length


def _sha256(path: str) -> str:
  digest = hashlib.sha256()
  with tf.io.gfile.GFile(path, 'rb') as f:
    while chunk := f.read(_CHUNK):
      digest.update(chunk)
  return digest.hexdigest()


def _sync(path: str) -> None:
  """Has the disk take what was written, where the file is local."""
  if os.path.exists(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def _sum_of(content: Dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
