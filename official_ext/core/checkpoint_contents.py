"""What a checkpoint holds, and how that differs from what is to be restored."""

import collections
import difflib
from typing import Any, Dict, List

import tensorflow as tf

from official_ext.core import readable_paths

_VALUE = '/.ATTRIBUTES/VARIABLE_VALUE'
_SLOT = '/.OPTIMIZER_SLOT/'
# What tf.train.Checkpoint keeps for itself, and what a checkpoint of Model Garden's own trainer does not have.
_OPTIONAL = ('save_counter', 'step_state/')


def differences(checkpoint: tf.train.Checkpoint, prefix: str, only_model: bool = False) -> List[str]:
  """Compares the variables of an object with those in a file, by name and shape.

  Args:
    checkpoint: what is to be restored, its variables created.
    prefix: path of the checkpoint.
    only_model: whether only the model is of interest, as in an evaluation.

  Returns:
    A line for each difference: a variable that only one of them has, or that has another shape; [] where they agree.
    The slots of legacy optimizers are not compared.
  """
  saved = saved_shapes(tf.train.load_checkpoint(readable_paths.readable(prefix)))
  prefix = 'model/' if only_model else ''
  saved = {name: shape for name, shape in saved.items() if name.startswith(prefix)}
  present = {name: tuple(variable.shape.as_list()) for name, variable in variables(checkpoint, prefix).items()}
  lines = []
  for name in sorted(set(present) - set(saved)):
    if not name.startswith(_OPTIONAL):
      near = difflib.get_close_matches(name, sorted(set(saved) - set(present)), n=1)
      lines.append(f'{name} {present[name]} is not in it' + (f' (it has {near[0]} {saved[near[0]]})' if near else ''))
  for name in sorted(set(saved) - set(present)):
    if not name.startswith(_OPTIONAL):
      lines.append(f'{name} {saved[name]} is in it and has no place')
  lines += [f'{name} has shape {saved[name]} in it, {present[name]} here'
            for name in sorted(set(saved) & set(present)) if saved[name] != present[name]]
  return lines


def key_of(name: str) -> str:
  """The key under which a checkpoint keeps the variable of a name."""
  return name + _VALUE


def saved_shapes(reader: Any) -> Dict[str, tuple]:
  """Names and shapes of the variables in a checkpoint that `tf.train.load_checkpoint` has opened, without slots."""
  return {
      key[:-len(_VALUE)]: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()
      if key.endswith(_VALUE) and _SLOT not in key
  }


def variables(root: Any, prefix: str = '') -> Dict[str, tf.Variable]:
  """The variables below a trackable object whose name, as tf.train.Checkpoint names them, begins with `prefix`."""
  found, seen = {}, {id(root)}
  queue = collections.deque([('', root)])
  while queue:
    path, node = queue.popleft()
    if isinstance(node, tf.Variable):
      if path.startswith(prefix):
        found[path] = node
      continue
    for name, child in tf.train.TrackableView.children(node).items():
      if id(child) not in seen:
        seen.add(id(child))
        escaped = name.replace('.', '..').replace('/', '.S')
        queue.append((f'{path}/{escaped}' if path else escaped, child))
  return found
