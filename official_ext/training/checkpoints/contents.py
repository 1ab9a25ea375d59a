"""Compares a checkpoint with the objects to restore, and its run with another run.

A checkpoint keeps a graph of objects, whose edges are the names of attributes. TensorFlow restores by walking it
together with the graph of the present objects. This module does the same without changing anything: an object with two
names (a backbone that is also a part of the model) matches by either. `RunNotes` writes the facts about a run into the
manifest.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import tf_internals
from official_ext.base.files import storage
from official_ext.data import data_identity as identity
from official_ext.training.checkpoints import manifests
from official_ext.training.model_parts import model_size
from official_ext.training.optimization import ema_optimizer

_GRAPH = tf_internals.OBJECT_GRAPH_KEY
_VALUE = 'VARIABLE_VALUE'
_MAX_NAMED = 5
_STEP_STATE = 'step_state'
EPOCHS = 'epochs'
OTHER_BASE = (
  'the frozen base of the adapters is not that which they were trained on, or is kept otherwise (quantization, '
  'frozen_dtype, scan_layers); name the folder with its weights, and keep them alike'
)
# Attributes that tf.train.Checkpoint keeps for itself, or that a checkpoint of Model Garden's trainer does not have.
_OPTIONAL = ('save_counter', f'{_STEP_STATE}/')


@dataclasses.dataclass(frozen=True)
class Place:
  """A variable, and the place of its value in a checkpoint.

  Attributes:
    variable: the variable to restore.
    key: of the value, for the checkpoint's reader.
    shape: of the value.
  """

  variable: tf.Variable
  key: str
  shape: tuple[int, ...]


@dataclasses.dataclass
class Match:
  """How a checkpoint fits an object. Names are tf.train.Checkpoint's, and `SLOT of NAME in OPTIMIZER`.

  Attributes:
    places: the variables that have a value in it, slots of legacy optimizers among them.
    missing: names and shapes of the variables that have none.
    unplaced: names and shapes of the values that have no variable.
  """

  places: dict[str, Place] = dataclasses.field(default_factory=dict)
  missing: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
  unplaced: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

  def differences(self) -> list[str]:
    """A line for each variable that only one of them has, or that has another shape; [] if they agree."""
    lines = []
    for name, shape in sorted(self.missing.items()):
      near = errors.nearest_names(name, sorted(self.unplaced))
      lines.append(f'{name} {shape} is not in it' + (f' (it has {near[0]} {self.unplaced[near[0]]})' if near else ''))
    for name, place in sorted(self.places.items()):
      shape = _shape(place.variable)
      if shape != place.shape:
        lines.append(f'{name} has shape {place.shape} in it, {shape} here')
    return lines + [f'{name} {shape} is in it and has no place' for name, shape in sorted(self.unplaced.items())]

  def check(self, path: str) -> None:
    """Makes sure that they agree.

    Raises:
      UserError: they do not; it names the path of the checkpoint, and the first differences.
    """
    lines = self.differences()
    if lines and self.has_other_base:
      raise errors.UserError(f'{path}: {OTHER_BASE}: {"; ".join(lines[:_MAX_NAMED])}')
    if lines:
      more = f'; and {len(lines) - _MAX_NAMED} more' if len(lines) > _MAX_NAMED else ''
      raise errors.UserError(f'{path}: not a checkpoint of this model: {"; ".join(lines[:_MAX_NAMED])}{more}')

  @property
  def has_other_base(self) -> bool:
    """Whether both have a digest of frozen weights, and another one."""
    return all(any(model_size.DIGEST_PREFIX in name for name in names) for names in (self.missing, self.unplaced))

  @property
  def may_fit_later(self) -> bool:
    """Whether only variables are missing that the model may still make, at its first call."""
    fits = all(_shape(place.variable) == place.shape for place in self.places.values())
    return fits and not self.missing and bool(self.unplaced)


class Contents:
  """A checkpoint, opened."""

  def __init__(self, path: str):
    """Opens the checkpoint at `path`."""
    self._reader = storage.open_checkpoint(path)
    self._shapes = self._reader.get_variable_to_shape_map()
    self._nodes: Sequence[Any] = ()
    if _GRAPH in self._shapes:  # Checkpoints of TensorFlow 1 have none: they keep variables by name.
      graph = tf_internals.TrackableObjectGraph.FromString(self._reader.get_tensor(_GRAPH))
      self._nodes = graph.nodes

  def value(self, key: str) -> Any:
    """The value at a place: a NumPy array."""
    return self._reader.get_tensor(key)

  def has(self, path: str) -> bool:
    """Whether its root has this attribute."""
    return any(child.local_name == path for child in self._children(0))

  def slots(self, slot_name: str) -> dict[str, str]:
    """The keys of an optimizer's slots of one name, by the keys of their variables."""
    return {
      self._key(slot.original_variable_node_id): self._key(slot.slot_variable_node_id)
      for node in self._nodes
      for slot in node.slot_variables
      if slot.slot_name == slot_name
    }

  def match(self, root: object, without: Sequence[str] = ()) -> Match:
    """Compares the checkpoint with an object.

    Args:
      root: a trackable object, such as the tf.train.Checkpoint to restore.
      without: attributes of the root to ignore, on both sides.
    """
    found = Match()
    by_node = self._bind(root, without)
    nodes = {id(trackable): number for number, trackable in by_node.items()}
    for name, variable in variables(root, without).items():
      if id(variable) in nodes and self._key(nodes[id(variable)]):
        key = self._key(nodes[id(variable)])
        found.places[name] = Place(variable, key, tuple(self._shapes[key]))
      else:
        found.missing[name] = _shape(variable)
    for number, name in self._names(without).items():
      if self._key(number) and number not in by_node:
        found.unplaced[name] = tuple(self._shapes[self._key(number)])
    self._match_slots(root, without, by_node, found)
    for names in (found.missing, found.unplaced):
      for name in [name for name in names if name.startswith(_OPTIONAL)]:
        del names[name]
    return found

  def _match_slots(self, root: object, without: Sequence[str], by_node: dict[int, Any], found: Match) -> None:
    """Adds the slots of legacy optimizers, which are not attributes."""
    names, placed = self._names(without), set()
    for number, optimizer in names.items():
      for slot in self._nodes[number].slot_variables:
        # If a variable has no place itself, its slot adds no information.
        if slot.original_variable_node_id in by_node:
          name = f'{slot.slot_name} of {names[slot.original_variable_node_id]} in {optimizer}'
          key = self._key(slot.slot_variable_node_id)
          variable = _slot(by_node.get(number), by_node[slot.original_variable_node_id], slot.slot_name)
          if variable is None:
            found.unplaced[name] = tuple(self._shapes[key])
          else:
            found.places[name] = Place(variable, key, tuple(self._shapes[key]))
            placed.add(id(variable))
    if not self.has(_STEP_STATE):
      return  # Model Garden's own trainer makes slots only at the first gradient of a variable.
    known = {name: variable for name, variable in variables(root).items() if name not in found.missing}
    for optimizer, trackable in walk(root, without):
      for slot_name in trackable.get_slot_names() if 'get_slot_names' in dir(trackable) else ():
        if slot_name == ema_optimizer.EXACT_SLOT:  # Checkpoints of older versions have none.
          continue
        for name, variable in known.items():
          slot = _slot(trackable, variable, slot_name)
          if slot is not None and id(slot) not in placed:
            found.missing[f'{slot_name} of {name} in {optimizer}'] = _shape(slot)

  def _bind(self, root: object, without: Sequence[str]) -> dict[int, Any]:
    """The objects that TensorFlow's restore would find, by the numbers of their nodes."""
    by_node, bound = {0: root}, {id(root)}
    queue = collections.deque([0] if self._nodes else [])
    while queue:
      number = queue.popleft()
      here = tf.train.TrackableView.children(by_node[number])
      for child in self._children(number):
        trackable = here.get(child.local_name)
        is_without = number == 0 and child.local_name in without
        if not is_without and trackable is not None and child.node_id not in by_node and id(trackable) not in bound:
          by_node[child.node_id] = trackable
          bound.add(id(trackable))
          queue.append(child.node_id)
    return by_node

  def _names(self, without: Sequence[str]) -> dict[int, str]:
    """Names of the nodes: the shortest paths to them."""
    names, queue = {0: ''}, collections.deque([0] if self._nodes else [])
    while queue:
      number = queue.popleft()
      for child in self._children(number):
        if child.node_id not in names and not (number == 0 and child.local_name in without):
          names[child.node_id] = _join(names[number], child.local_name)
          queue.append(child.node_id)
    return names

  def _children(self, number: int) -> list[Any]:
    return list(self._nodes[number].children) if number < len(self._nodes) else []

  def _key(self, number: int) -> str:
    """The key of a node's value; '' if it is not a variable."""
    return next((entry.checkpoint_key for entry in self._nodes[number].attributes if entry.name == _VALUE), '')


def rebuilt(checkpoint: tf.train.Checkpoint) -> tf.train.Checkpoint:
  """The same checkpoint, made by a constructor that gets all of its parts.

  An asynchronous save copies only these: a part that was attached later would be missing, without an error.
  """
  children = dict(tf.train.TrackableView.children(checkpoint))
  children.pop('save_counter', None)
  return tf.train.Checkpoint(**children)


def walk(root: object, without: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
  """The objects below a trackable object, the nearest first, with the names that tf.train.Checkpoint gives them.

  Args:
    root: the object.
    without: attributes of the root to ignore, with everything below them.
  """
  seen, queue = {id(root)}, collections.deque([('', root)])
  while queue:
    path, node = queue.popleft()
    yield path, node
    if isinstance(node, tf.Variable):
      continue
    for name, child in tf.train.TrackableView.children(node).items():
      if id(child) not in seen and not (node is root and name in without):
        seen.add(id(child))
        queue.append((_join(path, name), child))


def variables(root: Any, without: Sequence[str] = ()) -> dict[str, tf.Variable]:
  """The variables below a trackable object, by name: see `walk`."""
  return {path: node for path, node in walk(root, without) if isinstance(node, tf.Variable)}


_SLOT_OWNERS = 'slot_owners'


def note_slot_owners(root: object) -> dict[str, dict[str, str]]:
  """The entry of a manifest that says which variables have slots in optimizers that keep them by number."""
  owners = _slot_owners(root, variables(root))
  return {_SLOT_OWNERS: {name: identity.digest(names) for name, names in owners.items()}} if owners else {}


def check_slot_owners(path: str, root: object, match: Match) -> None:
  """Makes sure that slots which are kept by number are of the same variables here and in a checkpoint.

  Raises:
    UserError: they are not.
  """
  noted = manifests.entries(path).get(_SLOT_OWNERS) or {}
  known = {place.key.removesuffix(f'/.ATTRIBUTES/{_VALUE}'): place.variable for place in match.places.values()}
  for name, names in _slot_owners(root, known).items() if noted else ():
    if noted.get(name, '') not in ('', identity.digest(names)):
      raise errors.UserError(
        f'{path}: {name} has the slots of other variables than are trained here, such as of a layer that is frozen '
        'now; train the same ones, or take the weights alone by task.init_checkpoint'
      )


def _slot_owners(root: object, named: Mapping[str, tf.Variable]) -> dict[str, list[str]]:
  """For each optimizer below a root that keeps slots by number, the names of their variables, in its order."""
  found = {}
  for name, each in walk(root):
    numbers = tf_internals.slot_numbers(each, named)
    if numbers:
      found[name] = sorted(numbers, key=numbers.__getitem__)
  return found


def _slot(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable, slot_name: str) -> Any:
  """A slot of a legacy optimizer; None if it has none of that name for this variable."""
  try:
    return optimizer.get_slot(variable, slot_name)
  except (AttributeError, KeyError):
    return None


def _shape(variable: tf.Variable) -> tuple[int, ...]:
  return tuple(variable.shape.as_list())


def _join(path: str, name: str) -> str:
  escaped = name.replace('.', '..').replace('/', '.S')
  return f'{path}/{escaped}' if path else escaped


@dataclasses.dataclass(frozen=True)
class RunNotes:
  """The facts that are noted.

  Attributes:
    optimizer_config: the configuration of the optimizer, as JSON values.
    data_identity: the identity of the data, by the name of the input: see data/data_identity.py.
    code_identity: `code`, the digests of modules and files by name, and `versions`, the versions of packages.
    describe_code_changes: a function of such entries before and now; returns a line, '' if nothing has changed.
    epochs: the epochs up to here, as JSON values; None if they are not known: see config/epochs.py.
  """

  optimizer_config: Any = None
  data_identity: json_values.JsonMapping = dataclasses.field(default_factory=dict)
  code_identity: Mapping[str, object] = dataclasses.field(default_factory=dict)
  describe_code_changes: Callable[[json_values.JsonMapping, json_values.JsonMapping], str] = lambda before, now: ''
  epochs: json_values.Json = None

  def entries(self) -> json_values.JsonObject:
    """The entries for a manifest."""
    found = {'optimizer_config': self.optimizer_config, 'data': self.data_identity, **self.code_identity}
    return found if self.epochs is None else {**found, EPOCHS: self.epochs}

  def differ_in_constants(self, path: str) -> bool:
    """Whether the optimizer's constants differ from the run that saved a checkpoint."""
    saved = manifests.entries(path).get('optimizer_config')
    return saved is not None and _constants(saved) != _constants(self.optimizer_config)

  def report_other_data(self, path: str) -> None:
    """Prints how the data differ from the run that saved a checkpoint, a line for each difference."""
    before = manifests.entries(path).get('data') or {}
    lines = [
      line
      for name in self.data_identity
      if name in before
      for line in identity.differences(f'task.{name}', before[name], self.data_identity[name])
    ]
    if lines:
      print(f'{path}: other data than before:', flush=True)
      for line in lines:
        print(f'  {line}', flush=True)

  def check_held_out(self, path: str) -> None:
    """Makes sure that a checkpoint was not trained on records that are held out to evaluate it.

    Raises:
      UserError: it was, or may have been: other records were held out of the same ones, or none.
    """
    trained = {
      each['divided']: each['held_out']
      for each in (manifests.entries(path).get('data') or {}).get('train_data', ())
      if 'divided' in each
    }
    for each in self.data_identity.get('validation_data', ()):
      if trained.get(each.get('divided'), each.get('held_out')) != each.get('held_out'):
        raise errors.UserError(
          f'task.validation_data.input_path: is empty, so that records of task.train_data evaluate, and {path} was '
          'trained on them (--mode=train holds none out, unless task.validation_share is set); name other records, or '
          'start a new run in another --model_dir with --set=task.validation_share=0.1'
        )

  def report_other_code(self, path: str) -> bool:
    """Prints one line with the modules, files and packages that differ from the run that saved a checkpoint; returns
    whether any do."""
    changes = self.describe_code_changes(manifests.entries(path), self.code_identity)
    if changes:
      print(f'{path}: other code than before: {changes}', flush=True)
    return bool(changes)


_NO_CONSTANTS = ('parameter_groups', 'ema_zero_start')


def _constants(optimizer_config: object) -> object:
  """The fields that an optimizer's constants come from; groups of variables and the start of averages have none."""
  config = json.loads(json.dumps(optimizer_config))
  return {k: v for k, v in config.items() if k not in _NO_CONSTANTS} if isinstance(config, dict) else config
