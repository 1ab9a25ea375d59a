"""Which curves there are. Imports no framework."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

# Series of a panel: name -> points (x, y). Panels: name -> series.
Panels = Mapping[str, Mapping[str, Sequence[tuple[Any, float]]]]


@dataclasses.dataclass(frozen=True)
class Curve:
  """A picture.

  Attributes:
    title: above it.
    module: of this package; its function `measure_NAME(quick)` returns the panels.
    x: the variable.
    log_x: whether its axis is logarithmic.
    log_y: likewise.
    bars: whether x is a name.
  """

  title: str
  module: str
  x: str
  log_x: bool = True
  log_y: bool = False
  bars: bool = False


CURVES: Mapping[str, Curve] = {
  'steps_per_execution': Curve('Longer programs', 'steps', 'trainer.steps_per_execution'),
  'model_size': Curve('Larger models', 'steps', 'parameters', log_y=True),
  'variables': Curve('The same kernel in more variables', 'steps', 'variables of the model'),
  'metrics': Curve('More metrics and logs', 'steps', 'metrics, or scalars logged by the task', log_x=False),
  'resume': Curve('Resuming later', 'resuming', 'step at which the run resumes', log_y=True),
  'memory': Curve('Larger batches', 'peaks', 'rows of 128 tokens in an update'),
  'commands': Curve('Commands', 'commands', '', log_x=False, bars=True),
}
