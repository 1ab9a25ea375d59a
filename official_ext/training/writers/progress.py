"""Progress for people: a bar on a terminal, plain lines elsewhere."""

import atexit
from collections.abc import Iterable, Mapping
import math
import os
import sys
import threading
from typing import Any, TextIO

from absl import logging
import numpy as np

from official_ext.base import number_ranges
from official_ext.base import terminal_row
from official_ext.base.run_folder import run_log
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
_WIDTH = 80  # Of a terminal that does not give its own.
_GAP, _INDENT = '  ', '    '  # Between the values of a line; before those in its further rows.
_SKIPPED = 'update_skipped'
_MAX_RANGES = 5  # Of the steps of skipped updates in a line.
_MAX_TEXT = 200  # Characters of a prompt and of a completion in a line.


class ProgressWriter(writers.Writer):
  """Shows the progress of a run: step, percent, rate, time left, loss and metrics.

  It writes a line for each event: `train 200/1000 20% 512 steps/s eta 0:00:02  training_loss 0.1234  accuracy 0.975`.
  On a terminal a moving bar is below the last line.
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
    self._skipped: list[tuple[int, dict[str, Any]]] = []
    self._bar = _Bar(train_steps, self._stream) if bar and train_steps and _moves_cursor(self._stream) else None

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    flat = writers.flatten(values)
    if event == _SKIPPED:  # One loop may have hundreds.
      self._skipped.append((step, flat))
      return
    self._write_skipped()
    self._write(event, step, flat)

  def flush(self) -> None:
    """See base class."""
    self._write_skipped()

  def _write_skipped(self) -> None:
    """Writes the skipped updates that came one after the other in one line."""
    skipped, self._skipped = self._skipped, []
    if not skipped:
      return
    last, flat = skipped[-1]
    if len(skipped) > 1:
      kept = {name: value for name, value in flat.items() if name not in ('first_example', 'num_examples')}
      causes = [values['cause'] for _, values in skipped if 'cause' in values]
      steps = number_ranges.describe([step for step, _ in skipped], most=_MAX_RANGES)
      flat = {'steps': f'{steps} ({len(skipped)})', **kept, **({'cause': causes[0]} if causes else {})}
    self._write(_SKIPPED, last, flat)

  def _write(self, event: str, step: int, flat: dict[str, Any]) -> None:
    self._train_steps = flat.get('train_steps', self._train_steps)
    metrics = '  '.join(_SHOW.get(event, format_values)(flat))
    parts = [event, f'{step}/{self._train_steps}' if self._train_steps else f'step {step}']
    if event == 'train':
      parts.append(f'{_percent(step, self._train_steps, flat):.0f}%')
      parts += [part for part in (_rate(flat), _time_left(flat)) if part]
    line = '  '.join(filter(None, [' '.join(parts), metrics]))
    if self._bar:
      if event == 'train':
        self._bar.move(step, self._train_steps, flat)
      self._bar.print(line)
    else:
      self._stream.write(line + '\n')
      self._stream.flush()

  def close(self) -> None:
    """Writes what is held back, and removes the bar."""
    self._write_skipped()
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
  """The last row of a terminal: a bar with the step, the rate and the time left. It is redrawn at every event.

  Lines that are printed meanwhile, on stdout or stderr, stand above it.
  """

  def __init__(self, train_steps: int, stream: TextIO):
    self._stream = stream
    self._terminal = getattr(stream, 'original', stream)  # What is redrawn is not copied into a log.
    encoding = getattr(self._terminal, 'encoding', None) or 'ascii'
    self._marks = ('━', '─') if _can_encode('━─', encoding) else ('#', '-')
    self._lock = threading.RLock()  # A signal handler may print.
    self._is_drawn = False
    self._row = ''
    self._before = stdout, stderr = sys.stdout, sys.stderr
    self._above = [_Above(each, self) if each is not None and each.isatty() else each for each in (stdout, stderr)]
    sys.stdout, sys.stderr = self._above
    self._handler = logging.get_absl_handler().python_handler
    if self._handler.stream is stderr:
      self._handler.stream = sys.stderr
    # A process that ends without close() must not leave its prompt in the row.
    atexit.register(self.stop)
    self.move(0, train_steps, {})

  def move(self, step: int, train_steps: int, flat: Mapping[str, Any]) -> None:
    """Draws the bar at a step."""
    percent = _percent(step, train_steps, flat)
    filled = round(_BAR_WIDTH * min(100.0, max(0.0, percent if math.isfinite(percent) else 0.0)) / 100)
    bar = self._marks[0] * filled + self._marks[1] * (_BAR_WIDTH - filled)
    place = [f'{step}/{train_steps}', f'{percent:.0f}%', _rate(flat), _time_left(flat)]
    with self._lock:
      self._clear()
      self._row = ' '.join([bar, *filter(None, place if flat else place[:1])])
      self._draw()

  def print(self, line: str) -> None:
    """Writes a line above the bar, with its values whole: a row of the terminal ends between two of them."""
    rows = '\n'.join(_rows(line, self._width()))
    self.above(self._stream, f'{rows}\n', f'{line}\n')

  def above(self, stream: TextIO, text: str, copied: str = '') -> None:
    """Writes a text to a stream, above the bar; `copied` is the same for a log."""
    with self._lock:
      self._clear()
      if copied and isinstance(stream, run_log.CopiedStream):
        stream.write_as(text, copied)
      else:
        stream.write(text)
      stream.flush()
      if text.endswith('\n'):
        self._draw()

  def stop(self) -> None:
    """Removes the bar."""
    with self._lock:
      self._clear()
      self._row = ''
    for place, name in enumerate(('stdout', 'stderr')):
      if getattr(sys, name) is self._above[place]:
        setattr(sys, name, self._before[place])
    if self._handler.stream is self._above[1]:
      self._handler.stream = self._before[1]
    atexit.unregister(self.stop)

  def _width(self) -> int:
    try:
      return os.get_terminal_size(self._terminal.fileno()).columns or _WIDTH
    except OSError:
      return _WIDTH

  def _clear(self) -> None:
    if self._is_drawn:
      self._is_drawn = False
      self._terminal.write('\r\x1b[K')
      self._terminal.flush()

  def _draw(self) -> None:
    if self._row:
      self._is_drawn = True
      self._terminal.write(self._row[: self._width() - 1])  # In the last column some terminals begin a row.
      self._terminal.flush()


class _Above:
  """A stream whose text stands above a bar."""

  def __init__(self, stream: TextIO, bar: _Bar):
    self.original = stream
    self._bar = bar

  def write(self, text: str) -> int:
    self._bar.above(self.original, text)
    return len(text)

  def writelines(self, lines: Iterable[str]) -> None:
    for line in lines:
      self.write(line)

  def __getattr__(self, name: str) -> Any:
    return getattr(self.original, name)


def _moves_cursor(stream: TextIO) -> bool:
  """Whether a stream is a terminal on which a row can be drawn again."""
  return stream.isatty() and os.environ.get('TERM', 'dumb') != 'dumb'


def _can_encode(text: str, encoding: str) -> bool:
  try:
    text.encode(encoding)
  except (UnicodeEncodeError, LookupError):
    return False
  return True


def _rows(line: str, width: int) -> list[str]:
  """The rows of a line on a terminal: it is broken between values, and never inside one that fits in a row."""
  rows = ['']
  for part in line.split(_GAP):
    longer = f'{rows[-1]}{_GAP}{part}' if rows[-1] else part
    if rows[-1] and len(longer) > width:
      rows.append(f'{_INDENT}{part}')
    else:
      rows[-1] = longer
  return rows


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
  return f'eta {terminal_row.duration(seconds)}'
