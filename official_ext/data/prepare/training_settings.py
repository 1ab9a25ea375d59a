"""Settings of the trainer for data sets of hundreds or thousands of examples. No TensorFlow."""

from official_ext.base import json_types

_EPOCHS = 50
_EVALUATIONS = 20
_LEARNING_RATE = 0.001
BERT_RATE = 5e-5  # Of a BERT from a checkpoint: Devlin et al. 2019, arXiv:1810.04805, appendix A.3.
SMALL_ENCODER_RATE = 5e-4  # Of a small one from random weights.
FEW_STEPS = 5000


def trainer(
  steps_per_epoch: int,
  learning_rate: float = _LEARNING_RATE,
  epochs: int = _EPOCHS,
  least_steps: int = 0,
) -> json_types.JsonObject:
  """A cosine schedule with a warm-up over a number of epochs, and 20 evaluations.

  Args:
    steps_per_epoch: the number of batches of the training data.
    learning_rate: at the end of the warm-up.
    epochs: how often each example is seen.
    least_steps: the least number of updates, for very small data.
  """
  interval = max(1, max(epochs * steps_per_epoch, least_steps) // _EVALUATIONS)
  train_steps = interval * _EVALUATIONS
  cosine = {'initial_learning_rate': learning_rate, 'decay_steps': train_steps}
  return {
    'train_steps': train_steps,
    'steps_per_loop': interval,
    'summary_interval': interval,
    'validation_interval': interval,
    'checkpoint_interval': interval,
    'optimizer_config': {
      'optimizer': {'type': 'adamw_experimental'},
      'learning_rate': {'type': 'cosine', 'cosine': cosine},
      'warmup': {'type': 'linear', 'linear': {'warmup_steps': max(1, train_steps // 20), 'warmup_learning_rate': 0.0}},
    },
  }


def norm_momentum(train_steps: int) -> float:
  """The momentum of batch normalisation: its statistics must follow within a short training."""
  return 0.9 if train_steps < FEW_STEPS else 0.99


def add_best_checkpoint(trainer_values: json_types.JsonObject, num_steps: int, metric: str) -> None:
  """Adds the number of evaluation steps, and the metric whose highest value selects the best checkpoint."""
  trainer_values['validation_steps'] = num_steps
  trainer_values['best_checkpoint_export_subdir'] = 'best_ckpt'
  trainer_values['best_checkpoint_eval_metric'] = metric
  trainer_values['best_checkpoint_metric_comp'] = 'higher'
