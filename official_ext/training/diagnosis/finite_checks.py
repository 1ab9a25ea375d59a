"""--debug: runs one step eagerly, and names the first operation and layer whose numbers are not finite.

`OpTrace` records eager operations one by one. `origin` goes back from a value that is not finite to the operation that
made it out of finite ones. `debug_step` is the mode.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import linecache
import os
import sys
import tempfile
import types

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.training.checkpoints import contents
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import distribute
from official_ext.training.diagnosis import findings
from official_ext.training.loop import train_lib
from official_ext.training.step import gradient_tap
from official_ext.training.step import observers
from official_ext.training.tasks import model_garden
from official_ext.training.writers import writers

_identity = tf_internals.tensor_id
# Code between a task's own and the operation.
_HIDDEN = (*tf.__path__, *tf_keras.__path__, os.path.dirname(__file__), contextlib.__file__, '<frozen')


# The functions that call operations outside of the forward pass.
_PHASES = {'imperative_grad': 'backward', 'apply_gradients': 'update', 'apply_reduced': 'update'}


@dataclasses.dataclass
class Operation:
  """One operation that ran.

  Attributes:
    number: the first is 0.
    type: its name in TensorFlow, such as 'MatMul'.
    phase: 'forward', 'backward' or 'update'.
    layer: the path of the Keras layer that it belongs to; '' outside of layers.
    source: the line of the task's code that made it, or in the backward pass, the line of the differentiated operation.
    gradient_of: in the backward pass, the type of the operation whose gradient this one computes.
    inputs: descriptions of its inputs, if an output or an input is not finite.
    outputs: descriptions of its outputs, likewise.
    bad_inputs: the identities of the inputs that are not finite.
    has_nan: whether an output is NaN.
    place: file, line and function of `source`.
    made_from: the types of the operations that made its inputs, as far as known.
  """

  number: int
  type: str
  phase: str
  layer: str
  source: str
  gradient_of: str = ''
  inputs: tuple[str, ...] = ()
  outputs: tuple[str, ...] = ()
  bad_inputs: tuple[int, ...] = ()
  has_nan: bool = False
  place: str = ''
  made_from: tuple[str, ...] = ()

  def __str__(self) -> str:
    what = f'{self.type}, of the gradient of {self.gradient_of},' if self.gradient_of else self.type
    where = f'in layer {self.layer}' if self.layer else 'in no layer'
    return f'{what} {where}, {self.phase}'


class OpTrace:
  """A record of the operations that run inside `recording`. They must run eagerly, in one thread.

  Attributes:
    operations: all of them, in order.
  """

  def __init__(self):
    self.operations: list[Operation] = []
    self._makers: dict[int, Operation] = {}  # By the identity of a tensor.
    self._takers: dict[tuple[str, int], Operation] = {}  # By type and the identity of an input.
    self._users: dict[int, str] = {}  # By the identity of a tensor, the layer that used it last, for custom gradients.
    self._writers: dict[int, Operation] = {}  # By the identity of a variable's handle.
    self._bad: set = set()
    self._differentiated: tuple[str, Operation | None] | None = None

  @contextlib.contextmanager
  def recording(self) -> Iterator[None]:
    """A context that records the operations in it; tf.functions run as Python there."""
    ran_eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    tf_internals.add_op_callback(self._record)
    tf_internals.register_gradient_function(self._gradient)
    try:
      with observers.followed():
        yield
    finally:
      tf_internals.register_gradient_function(tf_internals.gradient_function)
      tf_internals.remove_op_callback(self._record)
      tf.config.run_functions_eagerly(ran_eagerly)

  def _record(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
    """Records one operation; called by TensorFlow as an op callback."""
    del attrs, op_name
    if graph is not None:
      return
    bad_inputs = tuple(_identity(tensor) for tensor in inputs if _identity(tensor) in self._bad)
    operation = self._new_operation(op_type, inputs, bad_inputs)
    self.operations.append(operation)
    bad_outputs = [tensor for tensor in outputs if not is_finite(tensor)]
    self._bad.update(map(_identity, bad_outputs))
    writes = [tensor for tensor in inputs if tensor.dtype == tf.resource] if op_type != 'ReadVariableOp' else []
    if bad_outputs or bad_inputs or writes:
      operation.inputs = tuple(map(describe_operation, inputs))
      operation.outputs = tuple(map(describe_operation, outputs))
      operation.has_nan = any(np.isnan(_array(tensor)).any() for tensor in bad_outputs)
    if operation.layer and not operation.gradient_of:
      concerned = inputs if operation.phase == 'forward' else outputs
      self._users.update((_identity(tensor), operation.layer) for tensor in concerned)
    for tensor in inputs:
      self._takers[op_type, _identity(tensor)] = operation
    for tensor in outputs:
      self._makers[_identity(tensor)] = operation
    if op_type == 'ReadVariableOp' and bad_outputs and _identity(inputs[0]) in self._writers:
      self._makers.update((_identity(tensor), self._writers[_identity(inputs[0])]) for tensor in bad_outputs)
    for tensor in writes:
      self._writers[_identity(tensor)] = operation

  def _new_operation(self, op_type, inputs, bad_inputs):
    layer, gradient_of = observers.current_path(), ''
    source, place, phase = _source()
    if self._differentiated is not None:
      phase, (gradient_of, forward) = 'backward', self._differentiated
      if forward:
        layer, source, place = forward.layer, forward.source, forward.place
    elif phase == 'backward':  # For a custom gradient, the tensors that it uses of the forward pass identify the layer.
      layer = next((self._users[_identity(t)] for t in inputs if _identity(t) in self._users), '')
    return Operation(
      len(self.operations),
      op_type,
      phase,
      layer,
      source,
      gradient_of,
      bad_inputs=bad_inputs,
      place=place,
      made_from=tuple(self._makers[_identity(t)].type for t in inputs if _identity(t) in self._makers),
    )

  def _gradient(self, op_name, attr_tuple, num_inputs, inputs, outputs, *args):
    """Replaces TensorFlow's own function that calls an operation's gradient; it does not always get all tensors."""
    forward = next((self._makers[_identity(t)] for t in outputs or () if _identity(t) in self._makers), None)
    if forward is None:
      takers = ((op_name, _identity(tensor)) for tensor in inputs or ())
      forward = next((self._takers[taker] for taker in takers if taker in self._takers), None)
    before, self._differentiated = self._differentiated, (op_name, forward)
    try:
      return tf_internals.gradient_function(op_name, attr_tuple, num_inputs, inputs, outputs, *args)
    finally:
      self._differentiated = before

  def origins(self, tensors: Iterable[tf.Tensor]) -> list[Operation]:
    """The operations that made the first numbers that are not finite, out of finite ones, on the way to these tensors.

    Args:
      tensors: tensors that are not finite, made while recording.

    Returns:
      The operations in the order in which they ran. One counts too if such a number in its input comes from no recorded
      operation, such as a constant.
    """
    return [
      operation
      for operation in self._ancestors(tensors)
      if not any(tensor in self._makers for tensor in operation.bad_inputs)
    ]

  def first_nan(self, tensors: Iterable[tf.Tensor]) -> Operation | None:
    """The first operation with a NaN as result on the way from the origins to these tensors."""
    return next((operation for operation in self._ancestors(tensors) if operation.has_nan), None)

  def _ancestors(self, tensors):
    found: dict[int, Operation] = {}
    pending = [_identity(tensor) for tensor in tensors]
    while pending:
      operation = self._makers.get(pending.pop())
      if operation is not None and operation.number not in found:
        found[operation.number] = operation
        pending.extend(operation.bad_inputs)
    return [found[number] for number in sorted(found)]


def _array(tensor: tf.Tensor) -> np.ndarray:
  """The values of a floating or complex tensor; an empty array for anything else."""
  if not tf.is_tensor(tensor) or not (tensor.dtype.is_floating or tensor.dtype.is_complex):
    return np.zeros([0])
  array = tensor.numpy()
  return array if tensor.dtype.is_complex or array.dtype == np.float64 else np.asarray(array, np.float32)


def is_finite(tensor: tf.Tensor) -> bool:
  """Whether no number of a tensor is infinite or NaN."""
  return bool(np.isfinite(_array(tensor)).all())


def describe_operation(tensor: tf.Tensor) -> str:
  """Type, shape and range of a tensor, and how many of its numbers are NaN, infinite or zero."""
  if not tf.is_tensor(tensor) or tensor.dtype in (tf.resource, tf.variant, tf.string):
    has_dtype = tf.is_tensor(tensor) or isinstance(tensor, (np.ndarray, np.generic))
    return tensor.dtype.name if has_dtype else type(tensor).__name__
  text = f'{tensor.dtype.name} {list(tensor.shape)}'
  array = np.abs(tensor.numpy()) if tensor.dtype.is_complex else tensor.numpy()
  if not array.size or array.dtype == bool:
    return text
  array = array.astype(np.float64)
  finite = array[np.isfinite(array)]
  if finite.size:
    text += f', {finite.min():.6g} to {finite.max():.6g}'
  counts = {'NaN': np.isnan(array), 'inf': np.isposinf(array), '-inf': np.isneginf(array), 'zero': array == 0}
  for name, mask in counts.items():
    if mask.any():
      text += f', {mask.sum()} of {array.size} {name}'
  return text


def _source() -> tuple[str, str, str]:
  """The innermost line of code that is not hidden, as 'file:line: text' and as 'file:line (function)'; the phase."""
  frame: types.FrameType | None = sys._getframe(2)  # pylint: disable=protected-access
  line, place, phase = '', '', 'forward'
  while frame is not None:
    code = frame.f_code
    phase = _PHASES.get(code.co_name, phase)
    if not line and not code.co_filename.startswith(_HIDDEN):
      text = linecache.getline(code.co_filename, frame.f_lineno).strip()
      place = tracebacks.at_line(code.co_filename, frame.f_lineno, code.co_qualname.rpartition('<locals>.')[2])
      line = f'{os.path.relpath(code.co_filename)}:{frame.f_lineno}: {text}'
    frame = frame.f_back
  return line, place, phase


_REMEDIES = {
  'Log': 'use tf.math.xlogy or a loss that takes logits, or add a small number to the argument of the logarithm',
  'RealDiv': 'use tf.math.divide_no_nan, or add a small number to the divisor',
  'Sqrt': 'add a small number under the root: its gradient at 0 is infinite',
  'Pow': 'add a small number to the base: the gradient of a root at 0 is infinite',
  'Exp': 'subtract the maximum first, as tf.reduce_logsumexp does',
}
_SAME = {
  'Log1p': 'Log',
  'Xdivy': 'RealDiv',
  'Reciprocal': 'RealDiv',
  'Rsqrt': 'Sqrt',
  'SqrtGrad': 'Sqrt',
  'RsqrtGrad': 'Sqrt',
}
_PROBABILITIES = {'Softmax': 'tf.nn.log_softmax', 'Sigmoid': 'tf.math.log_sigmoid'}


def origin(run: Callable[[], Sequence[object]], what: str, otherwise: str) -> findings.Finding:
  """The finding about a step that is not finite.

  Args:
    run: runs the step again, and returns its tensors that are not finite.
    what: the name of the value that is not finite.
    otherwise: the place to name if no line of code is known.
  """
  trace = OpTrace()
  with trace.recording():
    tensors = run()
  origins = trace.origins(tensors)
  if not origins:
    return findings.Finding('error', otherwise, f'{what} is not finite', '--debug looks for the operation')
  first = origins[0]
  kinds = [first.gradient_of, first.type]
  remedy = next(
    (_REMEDIES[_SAME.get(kind, kind)] for kind in kinds if _SAME.get(kind, kind) in _REMEDIES),
    '--debug shows its inputs',
  )
  return findings.Finding(
    'error',
    first.place or otherwise,
    f'{what} is not finite: the first operation to give such a number is {first}',
    remedy,
  )


def logarithms(trace: OpTrace, is_users: Callable[[str], bool]) -> list[findings.Finding]:
  """Finds logarithms of the results of a softmax or a sigmoid: 0 becomes minus infinity.

  Args:
    trace: of a step.
    is_users: whether a file is the user's.
  """
  found = []
  for operation in trace.operations:
    maker = operation.made_from[0] if operation.type == 'Log' and operation.made_from else ''
    if maker in _PROBABILITIES and is_users(operation.source.partition(': ')[0].rpartition(':')[0]):
      found.append(
        findings.Finding(
          'warning',
          operation.place,
          f'this is the logarithm of a {maker.lower()}: -inf if a probability is 0',
          f'use {_PROBABILITIES[maker]}, or a loss that takes logits',
        )
      )
  return list(dict.fromkeys(found))


_MAX_NAMED = 8


def debug_step(
  params: definitions.ExperimentConfig,
  model_dir: str | None,
  checkpoint: str | None = None,
  step: int | None = None,
) -> None:
  """Runs one step eagerly, on one device, and prints its values that are not finite. Writes nothing to `model_dir`.

  It trains up to that step, from the newest checkpoint before it, or else from step 0.

  Args:
    params: the experiment.
    model_dir: the folder of a run, or None.
    checkpoint: the path of the checkpoint to begin from, instead of the newest before the step.
    step: the step's number (the first: 1). None: the last that the run has skipped because it was not finite, else
      the one after the checkpoint.

  Raises:
    UserError: there is no such checkpoint or step.
    DivergedError: the step is not finite; the message names the origin.
  """
  step, checkpoint, reason = _choose_step(model_dir, checkpoint, step)
  start = manifests.step_of(checkpoint) if checkpoint else 0
  runtime = {'distribution_strategy': 'one_device', 'num_gpus': min(params.runtime.num_gpus, 1)}
  if step == start + 1:
    runtime['enable_xla'] = False  # Nothing will be compiled.
  params = params.replace(runtime=runtime)
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with tempfile.TemporaryDirectory(prefix='debug-') as folder, strategy.scope():
    task = model_garden.make_task(params.task, logging_dir=folder)
    task.weights_folder = manifests.folder_of(checkpoint) if checkpoint else ''
    params = params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))
    trainer = train_lib.build_trainer(strategy, task, params, folder, train=True, evaluate=False)
    _restore(trainer, params, model_dir, checkpoint)
    _print_row('devices', distribute.describe(strategy, params.runtime))
    _print_row('step', f'{step} ({reason}), from {checkpoint or "the first weights"}')
    if step > start + 1:
      _print_row('training', f'{step - start - 1} steps to get there')
      trainer.train(tf.constant(step - start - 1, tf.int32))
    _debug_step(trainer, step)


def _print_row(name: str, text: object) -> None:
  print(f'{name:<10} {text}', flush=True)


def _choose_step(model_dir: str | None, checkpoint: str | None, step: int | None) -> tuple[int, str | None, str]:
  """(the step, the checkpoint to begin from or None, the reason for this step)."""
  if step is not None and step < 1:
    raise errors.UserError(f'--debug_step: expected at least 1, got {step}')
  reason = '--debug_step'
  if checkpoint is not None:
    checkpoint = training_lines.checkpoint_named(checkpoint, f'--checkpoint={checkpoint}')
    listing.check_available(model_dir or '', 'eval', checkpoint)
  elif step is None and (skipped := _last_skipped(model_dir)):
    step, reason = skipped, 'the last that the run has skipped'
  if checkpoint is None and model_dir:
    sound = [
      path
      for path in listing.checkpoint_paths(model_dir)
      if (step is None or manifests.step_of(path) < step) and manifests.find_damage(path) is None
    ]
    checkpoint = sound[-1] if sound else None
  start = manifests.step_of(checkpoint) if checkpoint else 0
  if step is None:
    step, reason = start + 1, 'the next after the checkpoint' if checkpoint else 'the first'
  if step <= start:
    raise errors.UserError(f'--debug_step: {step} is not after {checkpoint}')
  return step, checkpoint, reason


def _last_skipped(model_dir: str | None) -> int | None:
  path = os.path.join(model_dir or '', 'events.jsonl')
  if not model_dir or not paths.exists(path):
    return None
  steps = [event['step'] for event in writers.read_events(path) if event['event'] == 'update_skipped']
  return steps[-1] if steps else None


def _restore(trainer, params, model_dir, checkpoint):
  if checkpoint is None:
    trainer.initialize()
    return
  manager = manager_lib.CheckpointManager(
    trainer.checkpoint,
    directory=model_dir or os.path.dirname(checkpoint),
    max_to_keep=None,
    step_counter=trainer.global_step,
    asynchronous=False,
    notes=contents.RunNotes(params.trainer.optimizer_config.as_dict()),
    create_variables=trainer.create_variables,
  )
  manager.restore(checkpoint)
  trainer.checkpoint_restored(**manager.continuation(checkpoint))


class _View:
  """Notes the results of a step, as `TrainingStep.rehearse` shows them."""

  def __init__(self):
    self.results: list[tuple[str, tf.Tensor]] = []

  @contextlib.contextmanager
  def watch(self) -> Iterator[None]:
    """See `TrainingStep.rehearse`."""
    yield

  def of_update(
    self, variables: Sequence[tf.Variable], before: object, loss: tf.Tensor, gradients: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    """See `TrainingStep.rehearse`."""
    del before
    self.results.append(('the loss', loss))
    for variable, gradient in zip(variables, gradients or ()):
      values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
      self.results.append((f'the gradient of {variable.name}', values))
    self.results += [(f'the weight {variable.name}', variable.read_value()) for variable in variables]
    return loss


def _debug_step(trainer, step):
  trainer.prepare_training()
  batches = trainer.take_batches()
  before = _bad_before(trainer, batches)
  cause = trainer.examine_step(step)
  if cause:
    before.append(cause)
  for line in before:
    _print_row('before', line)
  trace, view = OpTrace(), _View()
  try:
    with trace.recording():
      trainer.training_step.rehearse(batches, lambda: view)
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    data = trainer.inputs['train_data']
    explained = errors.UserError(f'{data.path}: {cause}') if cause else data.explain(error, step - 1, trainer.model)
    if explained is None:
      raise
    raise explained from error
  bad = [(name, tensor) for name, tensor in view.results if not is_finite(tensor)]
  _print_row('loss', f'{float(view.results[0][1]):.6g}')
  _print_row('operations', f'{len(trace.operations)}, and {len(view.results)} results: loss, gradients, weights')
  if not bad:
    _print_row('result', 'all finite')
    if before:
      raise errors.DivergedError(f'step {step}: {before[0]}')
    return
  names = ', '.join(name for name, _ in bad[:_MAX_NAMED])
  _print_row('not finite', names + (f' and {len(bad) - _MAX_NAMED} more' if len(bad) > _MAX_NAMED else ''))
  if isinstance(trainer.optimizer, tf_keras.mixed_precision.LossScaleOptimizer) and 'the loss' != bad[0][0]:
    _print_row('note', 'an overflow of float16 is answered by a lower loss scale')
  raise errors.DivergedError(f'step {step}: {_report_origin(trace, [tensor for _, tensor in bad], before)}')


def _report_origin(trace, tensors, before) -> str:
  """Prints the origin of values that are not finite, and returns it as a line."""
  origins = trace.origins(tensors)
  if not origins:
    return before[0] if before else 'the step is not finite, and no operation of it is known to be the first'
  first, first_nan = origins[0], trace.first_nan(tensors)
  line = f'the first operation whose result is not finite is {first}' + (f' ({first.source})' if first.source else '')
  _print_row('first', first)
  _describe(first)
  if first_nan is not None and not first.has_nan:  # An infinity may be intended, as in a mask.
    _print_row('first NaN', first_nan)
    _describe(first_nan)
    line += f'; the first NaN is that of {first_nan}'
  return line


def _describe(operation):
  if operation.source:
    _print_row('  at' if not operation.gradient_of else '  forward', operation.source)
  for name, descriptions in (('  input', operation.inputs), ('  output', operation.outputs)):
    for description in descriptions:
      _print_row(name, description)


def _bad_before(trainer, batches) -> list[str]:
  """The inputs and variables that were not finite before the step began."""
  bad = []
  for batch in batches:
    for name, tensor in zip(bad_examples.paths(batch), tf.nest.flatten(batch)):
      if isinstance(tensor, tf.Tensor) and not is_finite(tensor):
        bad.append(f'{name or "the input"} of the batch is not finite: {describe_operation(tensor)}')
  for variable in [*tf_internals.variables_of(trainer.model), *gradient_tap.variables_of(trainer.optimizer)]:
    if not is_finite(variable.read_value()):
      bad.append(f'the variable {variable.name} is not finite: {describe_operation(variable.read_value())}')
  return bad
