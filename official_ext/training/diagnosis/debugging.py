"""--debug: runs one step eagerly, and names the first operation and layer whose numbers are not finite."""

from collections.abc import Iterator, Sequence
import contextlib
import os
import tempfile

from official.core import task_factory
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import named
from official_ext.training.checkpoints import run_notes
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import distribute
from official_ext.training.diagnosis import op_trace
from official_ext.training.loop import building
from official_ext.training.step import gradient_tap
from official_ext.training.writers import events_writer

_MAX_NAMED = 8


def run(
  params: definitions.ExperimentConfig,
  model_dir: str | None,
  checkpoint: str | None = None,
  step: int | None = None,
) -> None:
  """Runs one step eagerly, on one device, and prints its values that are not finite. Writes nothing to `model_dir`.

  It trains up to that step, from the newest checkpoint before it, or from step 0 if there is none.

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
    task = task_factory.get_task(params.task, logging_dir=folder)
    task.goes_on_from = manifests.folder_of(checkpoint) if checkpoint else ''
    params = params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))
    trainer = building.build_trainer(strategy, task, params, folder, train=True, evaluate=False)
    _restore(trainer, params, model_dir, checkpoint)
    _say('devices', distribute.describe(strategy, params.runtime))
    _say('step', f'{step} ({reason}), from {checkpoint or "the first weights"}')
    if step > start + 1:
      _say('training', f'{step - start - 1} steps to get there')
      trainer.train(tf.constant(step - start - 1, tf.int32))
    _debug_step(trainer, step)


def _say(name: str, text: object) -> None:
  print(f'{name:<10} {text}', flush=True)


def _choose_step(model_dir: str | None, checkpoint: str | None, step: int | None) -> tuple[int, str | None, str]:
  """(the step, the checkpoint to begin from or None, the reason for this step)."""
  if step is not None and step < 1:
    raise errors.UserError(f'--debug_step: expected at least 1, got {step}')
  reason = '--debug_step'
  if checkpoint is not None:
    checkpoint = named.path_of(checkpoint, f'--checkpoint={checkpoint}')
    listing.check_available(model_dir or '', 'eval', checkpoint)
  elif step is None and (skipped := _last_skipped(model_dir)):
    step, reason = skipped, 'the last that the run has skipped'
  if checkpoint is None and model_dir:
    sound = [
      path
      for path in listing.paths(model_dir)
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
  if not model_dir or not tf.io.gfile.exists(path):
    return None
  steps = [event['step'] for event in events_writer.read_events(path) if event['event'] == 'update_skipped']
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
    notes=run_notes.RunNotes(params.trainer.optimizer_config.as_dict()),
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
    _say('before', line)
  trace, view = op_trace.OpTrace(), _View()
  try:
    with trace.recording():
      trainer.training_step.rehearse(batches, lambda: view)
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    data = trainer.inputs['train_data']
    explained = errors.UserError(f'{data.path}: {cause}') if cause else data.explain(error, step - 1, trainer.model)
    if explained is None:
      raise
    raise explained from error
  bad = [(name, tensor) for name, tensor in view.results if not op_trace.is_finite(tensor)]
  _say('loss', f'{float(view.results[0][1]):.6g}')
  _say('operations', f'{len(trace.operations)}, and {len(view.results)} results: loss, gradients, weights')
  if not bad:
    _say('result', 'all finite')
    if before:
      raise errors.DivergedError(f'step {step}: {before[0]}')
    return
  names = ', '.join(name for name, _ in bad[:_MAX_NAMED])
  _say('not finite', names + (f' and {len(bad) - _MAX_NAMED} more' if len(bad) > _MAX_NAMED else ''))
  if isinstance(trainer.optimizer, tf_keras.mixed_precision.LossScaleOptimizer) and 'the loss' != bad[0][0]:
    _say('note', 'an overflow of float16 is answered by a lower loss scale')
  raise errors.DivergedError(f'step {step}: {_report_origin(trace, [tensor for _, tensor in bad], before)}')


def _report_origin(trace, tensors, before) -> str:
  """Prints the origin of values that are not finite, and returns it as a line."""
  origins = trace.origins(tensors)
  if not origins:
    return before[0] if before else 'the step is not finite, and no operation of it is known to be the first'
  first, first_nan = origins[0], trace.first_nan(tensors)
  line = f'the first operation whose result is not finite is {first}' + (f' ({first.source})' if first.source else '')
  _say('first', first)
  _describe(first)
  if first_nan is not None and not first.has_nan:  # An infinity may be intended, such as that of a mask.
    _say('first NaN', first_nan)
    _describe(first_nan)
    line += f'; the first NaN is that of {first_nan}'
  return line


def _describe(operation):
  if operation.source:
    _say('  at' if not operation.gradient_of else '  forward', operation.source)
  for name, descriptions in (('  input', operation.inputs), ('  output', operation.outputs)):
    for description in descriptions:
      _say(name, description)


def _bad_before(trainer, batches) -> list[str]:
  """The inputs and variables that were not finite before the step began."""
  bad = []
  for batch in batches:
    for name, tensor in zip(bad_examples.paths(batch), tf.nest.flatten(batch)):
      if isinstance(tensor, tf.Tensor) and not op_trace.is_finite(tensor):
        bad.append(f'{name or "the input"} of the batch is not finite: {op_trace.describe(tensor)}')
  for variable in [*trainer.model.variables, *gradient_tap.variables_of(trainer.optimizer)]:
    if not op_trace.is_finite(variable.read_value()):
      bad.append(f'the variable {variable.name} is not finite: {op_trace.describe(variable.read_value())}')
  return bad
