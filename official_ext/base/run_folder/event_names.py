"""The names of the events of a run, and of those of their values that are not metrics. No TensorFlow."""

EVENTS = (
  'start',
  'restored',
  'compiled',
  'train',
  'eval',
  'completions',
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
# The event of a sample of the machine, in a separate file: `events.system.jsonl`.
SYSTEM = 'system'
IMPORTED = 'imported'  # The first event of a run that another tracker has logged, instead of 'start'.
LAST_EVENTS = ('preempted', 'finished', 'failed', 'hung')  # A run that is not killed ends with one of them.
# Logs of a training step, means over its examples, which the loop reports a second instead: `tokens_per_second`.
TOKENS, LEARNED_TOKENS = 'tokens_per_example', 'learned_tokens_per_example'
# Values of 'train' and 'eval' events that concern the run, not the model.
PROGRESS = frozenset(
  (
    'data_wait',
    'epoch',
    'eta_seconds',
    'examples_per_second',
    'learned_tokens_per_second',
    'model_global_step',
    'optimizer_iterations',
    'percent',
    'seconds',
    'steps_per_second',
    'tokens_per_second',
    'train_steps',
  )
)
