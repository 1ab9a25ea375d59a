"""The animation of README.md: python -m tools.animation [--out=docs/images/resume.svg]

Trains an experiment twice: once undisturbed; once ended by SIGKILL after three quarters of its steps, and resumed by
the same command. Writes the recorded terminal lines as an animated SVG. Requires no network. Ends with an error if the
last checkpoints of the two runs differ in a byte.

The lines are those of the processes. Edited are: `python` stands for the interpreter's path, `~` for the temporary
folder; long lines are wrapped at spaces; pauses of more than a second are shortened to one. The picture begins with all
lines: a still of it shows the result.
"""

import argparse
from collections.abc import Iterator, Sequence
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from typing import NamedTuple
from xml.sax import saxutils

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARGUMENTS = ('--experiment=digits_mlp', '--mode=train_and_eval')
KILLED_AT = 'train 1500/2000'  # The start of the line after which the process is killed.
COLUMNS = 80
LONGEST_PAUSE = 1.0  # Seconds.
LAST_PAUSE = 6.0  # Seconds for which all lines are shown, before the animation and after each round.
_CHARACTER, _LINE, _MARGIN = 7.83, 18, 14  # Pixels, of a monospaced font of 13 pixels.
_COLORS = {'$': '#7ee787', 'Killed': '#ff7b72', 'restored': '#79c0ff', 'finished': '#7ee787'}


class Line(NamedTuple):
  """A line of the terminal.

  Attributes:
    at: seconds since the start of the recording.
    text: its characters, without the end of the line.
  """

  at: float
  text: str


def record(folder: pathlib.Path) -> list[Line]:
  """Runs the commands in a folder.

  Returns:
    The lines of the killed and the resumed run, and the digests of both runs' last checkpoints.

  Raises:
    RuntimeError: the checkpoints differ, or a run fails.
  """
  for _ in _training(folder, 'undisturbed'):
    pass
  start = time.monotonic()
  lines = []

  def show(text: str) -> None:
    lines.extend(Line(time.monotonic() - start, part) for part in _wrapped(text.replace(f'{folder}', '~')))

  command = ' '.join(['$ python train.py', *ARGUMENTS, '--model_dir=runs/killed'])
  show(command)
  for process, text in _training(folder, 'killed', may_fail=True):
    show(text)
    if text.startswith(KILLED_AT):
      show(f'$ kill -9 {process.pid}')
      process.send_signal(signal.SIGKILL)
  show('Killed')
  show(command)
  for _, text in _training(folder, 'killed'):
    show(text)
  digests = {path: _digest(folder, path) for path in (_last(folder, 'killed'), _last(folder, 'undisturbed'))}
  if len(set(digests.values())) != 1:
    raise RuntimeError(f'the checkpoints differ: {digests}')
  show(f'$ sha256sum {" ".join(digests)}')
  for path, digest in digests.items():
    show(f'{digest[:16]}...  {path}')
  return lines


def _training(folder: pathlib.Path, name: str, may_fail: bool = False) -> Iterator[tuple['subprocess.Popen[str]', str]]:
  """Yields the process of a training and each line that it prints."""
  command = [sys.executable, '-u', str(ROOT / 'train.py'), *ARGUMENTS, f'--model_dir=runs/{name}']
  environment = {**os.environ, 'COLUMNS': str(COLUMNS), 'PYTHONPATH': str(ROOT)}
  with subprocess.Popen(
    command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  ) as process:
    for text in process.stdout or ():
      yield process, text.rstrip()
  if process.returncode and not may_fail:
    raise RuntimeError(f'{name}: exit status {process.returncode}')


def _last(folder: pathlib.Path, name: str) -> str:
  """The data file of a run's last checkpoint, relative to the folder."""
  found = (folder / 'runs' / name).glob('ckpt-*.data-00000-of-00001')
  return str(max(found, key=lambda path: int(path.name.split('.')[0].removeprefix('ckpt-'))).relative_to(folder))


def _digest(folder: pathlib.Path, path: str) -> str:
  return hashlib.sha256((folder / path).read_bytes()).hexdigest()


def _wrapped(text: str) -> list[str]:
  """The lines of at most COLUMNS characters that a line becomes."""
  return textwrap.wrap(text, COLUMNS, subsequent_indent='    ', replace_whitespace=False) or ['']


def shortened(lines: Sequence[Line]) -> list[Line]:
  """The lines with pauses of at most LONGEST_PAUSE, the first at 0."""
  found: list[Line] = []
  for number, line in enumerate(lines):
    pause = min(line.at - lines[number - 1].at, LONGEST_PAUSE) if number else 0.0
    found.append(Line((found[-1].at if found else 0.0) + pause, line.text))
  return found


def draw(lines: Sequence[Line]) -> str:
  """The lines as an SVG. It begins with all lines, as a still has them, and then each appears at its time.

  Readers who prefer no motion see all lines.
  """
  total = lines[-1].at + LAST_PAUSE
  width, height = round(COLUMNS * _CHARACTER) + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
  styles, texts = [], []
  for number, line in enumerate(lines):
    gone, back = (round(100 * at / total, 2) for at in (LAST_PAUSE, LAST_PAUSE + line.at))
    if back > gone:
      styles.append(f'@keyframes k{number}{{0%{{opacity:1}}{gone}%{{opacity:0}}{back}%,100%{{opacity:1}}}}')
      styles.append(f'.k{number}{{animation:k{number} {total:.1f}s step-end infinite}}')
    color = next((color for start, color in _COLORS.items() if line.text.startswith(start)), '#e6edf3')
    texts.append(
      f'<text class="k{number}" x="{_MARGIN}" y="{_MARGIN + (number + 1) * _LINE - 5}" fill="{color}">'
      f'{saxutils.escape(line.text)}</text>'
    )
  return '\n'.join(
    [
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
      'role="img" aria-label="A run is killed and resumed; its last checkpoint equals that of an undisturbed run">',
      '<style>',
      'text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}',
      *styles,
      '@media (prefers-reduced-motion:reduce){text{animation:none!important}}',
      '</style>',
      f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
      *texts,
      '</svg>\n',
    ]
  )


def main(argv: Sequence[str] | None = None) -> None:
  """Records the runs and writes the picture."""
  parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
  parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'docs' / 'images' / 'resume.svg')
  out = parser.parse_args(argv).out
  with tempfile.TemporaryDirectory() as folder:
    out.write_text(draw(shortened(record(pathlib.Path(folder)))))
  print(f'{out}: {out.stat().st_size} bytes')


if __name__ == '__main__':
  main()
