"""The memory that a training will take, as an estimate, beside that of the machine: before an hour is lost.

A run that cannot fit is refused before its model is made; one that may not fit is warned of before its first step.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base.processes import machine_memory
from official_ext.training.devices import device_types
from official_ext.training.loop import experiment_run
from official_ext.training.model_parts import model_size

_WARN_ABOVE = 0.9
_GB = 1e9
_COMPILATION = int(0.6e9)  # Of a step, on a CPU: the peak of runs with tiny batches, less all else.
# The slots of each trained number, in float32 numbers; of other optimizers there may be none.
_SLOTS = {
  **dict.fromkeys(
    ('adam', 'adamw', 'adam_experimental', 'adamw_experimental', 'adamw_torch', 'adamw_legacy', 'lamb'), 2.0
  ),
  **dict.fromkeys(('stable_adamw', 'lion'), 1.0),
}


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """What a training takes at its peak, and what there is. All in bytes.

  Attributes:
    resident: what the process takes before its first step: the program, weights, slots, data. On GPUs weights and
      slots alone.
    gradients: of the trained variables; twice if micro-batches are accumulated.
    activations: of a micro-batch.
    compilation: of tracing and compiling the step; 0 on GPUs, whose memory it does not take.
    total: the memory of the machine, the limit of its cgroup, or the memory of the smallest GPU; 0 for unknown.
    available: what is left of `total` for this process, with `resident`; 0 for unknown.
  """

  resident: int
  gradients: int
  activations: int
  compilation: int
  total: int
  available: int

  @property
  def peak(self) -> int:
    """Bytes at the peak of a step."""
    return self.resident + self.gradients + self.activations + self.compilation

  def describe(self) -> str:
    """One line for people."""
    values = {
      'now': self.resident,
      'gradients': self.gradients,
      'activations': self.activations,
      'compilation': self.compilation,
    }
    parts = ', '.join(f'{name} {_gb(count)}' for name, count in values.items())
    room = f'; {_gb(self.available)} of {_gb(self.total)} GB available' if self.total else ''
    return f'about {_gb(self.peak)} GB at the peak of a step ({parts}){room}'

  def warning(self) -> str:
    """One line if that is more than nine tenths of the available memory; ''."""
    if not self.available or self.peak <= _WARN_ABOVE * self.available:
      return ''
    return (
      f'memory: a step takes about {_gb(self.peak)} GB, and {_gb(self.available)} GB are available: the run may be '
      'killed; halve task.train_data.global_batch_size and double trainer.gradient_accumulation_steps, or set '
      'task.model.remat=block ("Memory" in docs/how_to/scale.md)'
    )


def estimate(experiment: experiment_run.Experiment, size: model_size.ModelSize, model: Any) -> MemoryEstimate | None:
  """The estimate of a training; None if the task does not estimate its activations.

  Args:
    experiment: of the run.
    size: of its model, with the optimizer's slots.
    model: the model.
  """
  strategy = experiment.strategy
  activations = getattr(experiment.task, 'activation_bytes', lambda *_: None)(model, strategy.num_replicas_in_sync)
  if activations is None:
    return None
  copies = 2 if experiment.params.trainer.gradient_accumulation_steps > 1 else 1
  gradients = copies * size.gradient_bytes
  kind = device_types.device_type(strategy)
  if kind == 'GPU':
    total = _gpu_bytes()
    return MemoryEstimate(size.weight_bytes + size.slot_bytes, gradients, activations, 0, total, total)
  found = machine_memory.read() if kind == 'CPU' else None
  resident = machine_memory.resident()
  on_here = strategy.num_replicas_in_sync // max(1, experiment.workers.count)
  total, free = (found.total, found.available) if found else (0, 0)
  available = min(total, free + resident) if found else 0
  return MemoryEstimate(resident, on_here * gradients, on_here * activations, _COMPILATION, total, available)


def check_least(task: Any, optimizer: str | None, strategy: tf.distribute.Strategy) -> None:
  """Refuses a training whose weights and optimizer slots alone are more than the memory: before the model is made.

  Args:
    task: of the run; one that does not know its weights is not refused.
    optimizer: the name of its type.
    strategy: of the run; each of its devices holds all weights.

  Raises:
    UserError: it cannot fit.
  """
  kind = device_types.device_type(strategy)
  least = getattr(task, 'least_weights', lambda: None)()
  if least is None or kind == 'TPU':
    return
  weights, trained = least
  slots = int(4 * _SLOTS.get(optimizer or '', 0.0) * trained)
  found = machine_memory.read()
  total = _gpu_bytes() if kind == 'GPU' else found.total if found else 0
  if total and weights + slots > total:
    of_slots = f' and {_gb(slots)} GB of slots of {optimizer}' if slots else ''
    raise errors.UserError(
      f'task.model: {_gb(weights)} GB of weights{of_slots} are more than the {_gb(total)} GB of this '
      f'{"GPU" if kind == "GPU" else "machine"}; train adapters on weights in 4 bits (task.use_lora=true, '
      'task.load_in_4bit=true), or a smaller model'
    )


def _gpu_bytes() -> int:
  """The memory of the smallest GPU; 0 if it is unknown, as without nvidia-ml-py."""
  try:
    import pynvml  # pylint: disable=g-import-not-at-top  # Optional.

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=0)
  except Exception:  # pylint: disable=broad-except  # Not installed, no driver, no permission.
    return 0


def _gb(count: int) -> str:
  return f'{count / _GB:,.3g}'
