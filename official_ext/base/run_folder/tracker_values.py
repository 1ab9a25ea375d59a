"""What trackers (MLflow, Weights & Biases) call the values of a run, and what they take. No TensorFlow."""

from collections.abc import Mapping
import hashlib

from official_ext.base import credentials
from official_ext.base import json_types

STEP = 'global_step'  # W&B's axis of all metrics.
MLFLOW_MAX_VALUE = 6000  # MLflow refuses longer parameters.
MLFLOW_BATCH = 100  # And more parameters at once.
MLFLOW_STATUSES = {
  'finished': 'FINISHED',
  'failed': 'FAILED',
  'diverged': 'FAILED',
  'preempted': 'KILLED',
  'hung': 'KILLED',
  'dead': 'KILLED',
}
MLFLOW_NOTE = 'mlflow.json'  # In a run's folder: which MLflow run it writes to, of which store.
WANDB_NOTE = 'wandb_run_id'
WANDB_BAD_ENDS = ('failed', 'hung', 'diverged', 'dead')


def numbers_of(event: str, flat: Mapping[str, object]) -> dict[str, float]:
  """The numbers among the values of an event: those of 'eval' as `validation/<name>`; {} for other events."""
  if event not in ('train', 'eval'):
    return {}
  prefix = 'validation/' if event == 'eval' else ''
  return {prefix + name: value for name, value in flat.items() if isinstance(value, (bool, int, float))}


def flatten(values: Mapping[str, object], prefix: str = '') -> json_types.JsonObject:
  """A nested configuration as a flat one, with names joined by '/'."""
  flat: dict[str, object] = {}
  for key, value in values.items():
    flat |= flatten(value, f'{prefix}{key}/') if isinstance(value, Mapping) else {f'{prefix}{key}': value}
  return flat


def mlflow_name(name: str) -> str:
  """A name with the characters that MLflow allows."""
  return ''.join(c if c.isalnum() or c in '_-. /' else '_' for c in name)


def mlflow_params(params: Mapping[str, object]) -> dict[str, str]:
  """The parameters of a nested configuration, as MLflow takes them."""
  return {mlflow_name(name): str(value)[:MLFLOW_MAX_VALUE] for name, value in flatten(params).items()}


def mlflow_store_sum(uri: str) -> str:
  """A checksum that distinguishes the addresses of stores, but not by the passwords in them."""
  return hashlib.sha256(credentials.mask(uri).encode()).hexdigest()
