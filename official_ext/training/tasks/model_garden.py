"""The border to Model Garden: gives its tasks, and Orbit's trainers, the members that this library reads.

A task may derive from `ext.Task` or from Model Garden's Task, which has fewer members. A loop may run `ext.Trainer` or
any trainer of Orbit. They are adapted where they enter the library; the code inside reads every member without asking
whether it exists. Tasks enter by `run_experiment`, `build_trainer`, the constructors of `ext.Trainer` and of a trained
model, and `make_task`; trainers by the constructor of the loop's controller.

An object is adapted in place: its class, and so its name in records, stays. `isinstance(task, ext.Task)` still tells
whether the library has written the task's steps.
"""

from collections.abc import Mapping
import sys
from typing import Any, TypeVar

from official.core import task_factory

from official_ext.training.tasks import base_task

_Adapted = TypeVar('_Adapted')

# Members of `ext.Task` that the library reads. Their values in that class are the defaults.
_OF_TASKS = (
  'activation_bytes',
  'build_actions',
  'class_names',
  'code_files',
  'evaluation_end',
  'evaluation_end_names',
  'example_lines',
  'keep_files',
  'least_weights',
  'num_examples',
  'serving_function',
  'trainer_cls',
)


class _TrainerDefaults:
  """Defaults of the members of `ext.Trainer` that the loop reads.

  Attributes:
    speed: the speed of the last loop; None if it is not measured.
    plan: how the step is compiled; None if the trainer does not choose it.
    profiler: counts seconds by their kind; None if nothing does.
    data_offset: the offset that is added to the number of a step when its batches are chosen.
    steps_are_done: whether the last loop has run all of its steps.
    length: the length of the present evaluation; None if it is not known.
  """

  speed = plan = profiler = length = None
  data_offset = 0
  steps_are_done = False

  def prepare_training(self) -> None:
    """Makes what the first step needs: nothing."""

  def checkpoint_restored(self, **continuation: object) -> None:
    """Takes the notes of a checkpoint that was restored: does not use them."""

  def stop_requested(self) -> bool:
    """Whether to stop the evaluation. The loop replaces it."""
    return False


_OF_TRAINERS = tuple(name for name in vars(_TrainerDefaults) if not name.startswith('_'))


def make_task(task_config: object, **kwargs: Any) -> Any:
  """Makes the task of a configuration by Model Garden's registry, and adapts it.

  Args:
    task_config: its configuration, whose class is registered with a class of tasks.
    **kwargs: further arguments of `task_factory.get_task`, such as `logging_dir`.
  """
  return adapt_task(task_factory.get_task(task_config, **kwargs))


def adapt_task(task: _Adapted) -> _Adapted:
  """Gives a task the optional members of `ext.Task` that it lacks, with their defaults, and returns it.

  Args:
    task: any task; one that derives from `ext.Task` is returned unchanged.
  """
  if isinstance(task, base_task.Task):
    return task
  defaults = {name: vars(base_task.Task)[name].__get__(task) for name in _OF_TASKS}
  _separate_sentences(task)
  _keep_first_batch(task)
  # The micro-batches of Model Garden's tasks count the same, whatever their numbers of examples.
  return _completed(task, {**defaults, 'micro_batch_weight': None})


def _separate_sentences(task: Any) -> None:
  """Lets a TaggingTask evaluate sentences.

  Its own step joins those of a batch, and so an entity at the end of one and at the beginning of the next: the F1
  depends on the size of the batch.
  """
  own = _imported('official.nlp.tasks.tagging', 'TaggingTask')
  if not isinstance(task, own):
    return
  if (type(task).validation_step, type(task).aggregate_logs) != (own.validation_step, own.aggregate_logs):
    return

  def validation_step(inputs, model, metrics=None):
    del metrics
    features, labels = inputs
    outputs = task.inference_step(features, model)
    loss = task.build_losses(labels=labels, model_outputs=outputs)
    return {task.loss: loss, 'predict_ids': outputs['predict_ids'], 'label_ids': labels}

  def aggregate_logs(state=None, step_outputs=None):
    found: dict[str, list[Any]] = {'predict_ids': [], 'label_ids': []}
    for predicted, labels in zip(step_outputs['predict_ids'], step_outputs['label_ids']):  # Of each replica.
      for row, tags in zip(predicted, labels):
        found['predict_ids'].append(row[tags >= 0])
        found['label_ids'].append(tags[tags >= 0])
    return own.aggregate_logs(task, state, found)

  vars(task).update(validation_step=validation_step, aggregate_logs=aggregate_logs)


def _keep_first_batch(task: Any) -> None:
  """Lets a SemanticSegmentationTask keep its IoU of the first batch, after which it resets the metric.

  `reset_kept_metrics` resets it before the first batch.
  """
  own = _imported('official.vision.tasks.semantic_segmentation', 'SemanticSegmentationTask')
  if isinstance(task, own) and type(task).aggregate_logs is own.aggregate_logs:
    # The loop reads no metric of a state that is empty.
    vars(task)['aggregate_logs'] = lambda state=None, step_outputs=None: (
      own.aggregate_logs(task, {} if state is None else state, step_outputs) or True
    )


def reset_kept_metrics(task: Any) -> None:
  """Resets the metrics that a task keeps besides those of `build_metrics`: at the start of an evaluation."""
  own = _imported('official.vision.tasks.semantic_segmentation', 'SemanticSegmentationTask')
  if isinstance(task, own) and task.iou_metric is not None:
    task.iou_metric.reset_states()


def _imported(module: str, name: str) -> Any:
  """A class of a module, which no task can have if the module is not imported: then ()."""
  return getattr(sys.modules.get(module), name, ())


def adapt_trainer(trainer: _Adapted) -> _Adapted:
  """Gives a trainer, or an evaluator, the members that the loop reads and it lacks, and returns it.

  Args:
    trainer: any trainer or evaluator of Orbit; None stays None.
  """
  if trainer is None:
    return trainer
  defaults = _TrainerDefaults()
  return _completed(trainer, {name: getattr(defaults, name) for name in _OF_TRAINERS})


def _completed(owner: _Adapted, defaults: Mapping[str, Any]) -> _Adapted:
  for name, value in defaults.items():
    if not hasattr(owner, name):
      vars(owner)[name] = value  # Past tf.Module, which would track it.
  return owner
