"""The names of a run's values in trackers (MLflow, Weights & Biases), and the types accepted there. No TensorFlow."""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

from official_ext.base import credentials

STEP = 'global_step'  # W&B's axis of all metrics.
MLFLOW_MAX_VALUE = 6000  # MLflow refuses longer parameters.
MLFLOW_MAX_TAG = 5000
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
_WANDB_BAD_ENDS = ('failed', 'hung', 'diverged', 'dead')


def numbers_of(event: str, flat: Mapping[str, object]) -> dict[str, float]:
  """The numbers among the values of an event: those of 'eval' as `validation/<name>`; {} for other events."""
  if event not in ('train', 'eval'):
    return {}
  prefix = 'validation/' if event == 'eval' else ''
  return {prefix + name: value for name, value in flat.items() if isinstance(value, (bool, int, float))}


def mlflow_points(event: str, step: int, time: float, flat: Mapping[str, Any]) -> list[tuple[str, int, int, float]]:
  """The metrics of an event for MLflow: name, step, time in milliseconds and value of each number."""
  numbers = numbers_of(event, flat)
  return [(mlflow_name(name), step, round(time * 1000), float(value)) for name, value in numbers.items()]


def wandb_row(event: str, step: int, flat: Mapping[str, Any]) -> dict[str, float]:
  """The values of an event for W&B; {} if it has no numbers."""
  numbers = numbers_of(event, flat)
  return {**numbers, STEP: step} if numbers else {}


def wandb_exit_code(status: str) -> int:
  """The exit status with which W&B marks a run as finished or crashed."""
  return int(status in _WANDB_BAD_ENDS)


def csv_cell(value: Any) -> Any:
  """A value in a table: numbers as Python reads them again, lists as JSON."""
  if isinstance(value, (list, dict)):
    return json.dumps(value)
  return '' if value is None else repr(value) if isinstance(value, (bool, int, float)) else value


def flatten(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
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
