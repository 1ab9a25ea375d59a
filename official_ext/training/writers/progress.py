"""Progress for people: a bar on a terminal, plain lines elsewhere."""

import atexit
from collections.abc import Mapping
import datetime
import math
import sys
from typing import Any, TextIO

import numpy as np
import rich.console
import rich.progress

from official_ext.training.writers import writers

# Values that a line shows before the metrics.
_SHOWN_APART = ('percent', 'eta_seconds', 'steps_per_second')
# Other writers show these, or this one has shown them before; a line has no room for them.
_NOT_SHOWN = (
  'examples_per_second',
  'learned_tokens_per_second',
  'tokens_per_second',
  'data_wait',
  'optimizer_iterations',
  'model_global_step',
  'devices',
  'train_steps',
)
_BAR_WIDTH = 16
_MAX_TEXT = 200  # Characters of a prompt and of a completion in a line.


class ProgressWriter(writers.Writer):
  """Shows the progress of a run: step, percent, rate, time left, loss and metrics.

  On a terminal it draws a moving bar, with a line above it for every event but 'train'. In a file or a pipe it writes a
  line for each event: `train 200/1000 20% 512 steps/s eta 0:00:02 training_loss 0.1234 accuracy 0.975`.
  """

  def __init__(self, train_steps: int, bar: bool = True, stream: TextIO | None = None):
    """Initializes the writer; shows nothing yet.

    Args:
      train_steps: the step at which training ends, unless an event has another `train_steps`; 0 if the run does not
        train.
      bar: `trainer.progress_bar`: false writes lines on a terminal too.
      stream: where to write; None is sys.stdout.
    """
    self._train_steps = train_steps
    self._stream = stream or sys.stdout
    self._bar = _Bar(train_steps, self._stream) if bar and train_steps and self._stream.isatty() else None

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    flat = writers.flatten(values)
    self._train_steps = flat.get('train_steps', self._train_steps)
    metrics = '  '.join(_SHOW.get(event, format_values)(flat))
    if self._bar and event == 'train':
      self._bar.move(step, self._train_steps, flat, metrics)
      return
    parts = [event, f'{step}/{self._train_steps}' if self._train_steps else f'step {step}']
    if event == 'train':
      parts.append(f'{_percent(step, self._train_steps, flat):.0f}%')
      parts += [part for part in (_rate(flat), _time_left(flat)) if part]
    line = '  '.join(filter(None, [' '.join(parts), metrics]))
    if self._bar:
      self._bar.print(line)
    else:
      self._stream.write(line + '\n')
      self._stream.flush()

  def close(self) -> None:
    """Restores the terminal."""
    if self._bar:
      self._bar.stop()


def format_values(flat: Mapping[str, Any]) -> list:
  """Formats values as `name value`: numbers to four digits and short strings, but no arrays."""
  shown = []
  for name, value in flat.items():
    if name in _SHOWN_APART + _NOT_SHOWN or isinstance(value, (np.ndarray, list, tuple, type(None))):
      continue
    shown.append(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}')
  return shown


def _show_checkpoint(flat: Mapping[str, Any]) -> list:
  return [str(flat.get('checkpoint', ''))]


def _show_compiled(flat: Mapping[str, Any]) -> list:
  """Prints how the step is compiled: `plain, no XLA: convolutions are faster ... (1.4 s)`."""
  steps = flat.get('steps_per_execution', 1)
  program = f', {steps} steps a program' if steps > 1 else ''
  xla = 'XLA' if flat.get('jit_compile') else 'no XLA'
  return [f'{flat.get("step_shape")}, {xla}{program}: {flat.get("reason")} ({flat.get("seconds", 0.0):.1f} s)']


def _show_completions(flat: Mapping[str, Any]) -> list:
  """Prints the first completion: `1 of 4: 'What is 1 + 1?' -> 'It is 2.'`."""
  prompts, found = flat.get('prompts'), flat.get('completions')
  if not prompts or not found:
    return []
  shown = [text if len(text) <= _MAX_TEXT else f'...{text[-_MAX_TEXT:]}' for text in (prompts[0], found[0])]
  return [f'1 of {len(found)}: {shown[0]!r} -> {shown[1]!r}']


# Events that need more than a list of values.
_SHOW = {
  'checkpoint': _show_checkpoint,
  'restored': _show_checkpoint,
  'compiled': _show_compiled,
  'completions': _show_completions,
}


class _Bar:
  """A rich progress bar that is redrawn at every event, not by a separate thread."""

  def __init__(self, train_steps: int, stream: TextIO):
    console = rich.console.Console(file=stream, highlight=False)
    self._progress = rich.progress.Progress(
      rich.progress.BarColumn(bar_width=_BAR_WIDTH),
      rich.progress.TextColumn('{task.description}', markup=False),
      console=console,
      auto_refresh=False,
    )
    self._task = self._progress.add_task(f'0/{train_steps}', total=train_steps)
    self._progress.start()
    # A process that ends without close() must not leave the cursor hidden.
    atexit.register(self.stop)

  def move(self, step: int, train_steps: int, flat: dict[str, Any], metrics: str) -> None:
    percent = f'{_percent(step, train_steps, flat):.0f}%'
    place = ' '.join(filter(None, [f'{step}/{train_steps}', percent, _rate(flat), _time_left(flat)]))
    text = f'{place}  {metrics}'
    room = self._progress.console.width - _BAR_WIDTH - 2
    if len(text) > room:
      text = text[: room - 1] + '…'
    self._progress.update(self._task, completed=step, total=train_steps, description=text)
    self._progress.refresh()

  def print(self, line: str) -> None:
    self._progress.console.print(line, markup=False, soft_wrap=True)

  def stop(self) -> None:
    self._progress.stop()
    atexit.unregister(self.stop)


def _percent(step: int, train_steps: int, flat: Mapping[str, Any]) -> float:
  return float(flat.get('percent', 100.0 * step / train_steps if train_steps else math.nan))


def _rate(flat: Mapping[str, Any]) -> str:
  rate, tokens, learned = (flat.get(f'{name}_per_second') for name in ('steps', 'tokens', 'learned_tokens'))
  if rate is None:
    return ''
  text = f'{rate:.3g} steps/s' if rate < 100 else f'{rate:.0f} steps/s'
  if tokens is not None:
    text += f' {tokens:.0f} tokens/s' + ('' if learned is None else f' ({learned:.0f} learned)')
  return text


def _time_left(flat: Mapping[str, Any]) -> str:
  seconds = flat.get('eta_seconds')
  if seconds is None or not math.isfinite(seconds):
    return ''
  return f'eta {datetime.timedelta(seconds=round(seconds))}'
