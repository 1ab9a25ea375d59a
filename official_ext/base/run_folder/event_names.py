"""The names of the events of a run, and of those of their values that are not metrics. No TensorFlow."""

EVENTS = (
  'start',
  'restored',
  'compiled',
  'train',
  'eval',
  'checkpoint',
  'update_skipped',
  'rollback',
  'learning_rate_reduced',
  'early_stopped',
  'preempted',
  'finished',
  'failed',
  'checkpoint_failed',
  'hung',
)
LAST_EVENTS = ('preempted', 'finished', 'failed', 'hung')  # A run that is not killed ends with one of them.
# Values of 'train' and 'eval' events that concern the run, not the model.
PROGRESS = frozenset(
  (
    'data_wait',
    'epoch',
    'eta_seconds',
    'examples_per_second',
    'model_global_step',
    'optimizer_iterations',
    'percent',
    'seconds',
    'steps_per_second',
    'train_steps',
  )
)
