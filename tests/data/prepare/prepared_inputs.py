"""Files to be prepared, and preparations without processes."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

from PIL import Image

from official_ext.cli import main
from official_ext.data.prepare import planning
from official_ext.data.prepare import preparing
from official_ext.data.prepare import shards
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Here:
  """An engine in this process."""

  def __init__(self, reverse=False):
    self._reverse = reverse

  def answers(self, jobs):
    jobs = list(jobs)
    for job in reversed(jobs) if self._reverse else jobs:
      yield None
      yield shards.write_or_report(json.loads(json.dumps(job)))


def prepare(inputs, folder, tokenizer=None, reverse=False, stopped_by=lambda: None, **settings):
  """A preparation in this process; `settings` of `Settings`, or of texts if there is a tokenizer."""
  text = {name: settings.pop(name) for name in list(settings) if name in (*text_formats.OF_ROWS, 'label_column')}
  row_format = token_rows.TokenRows(text_formats.TextFields(**text), tokenizer) if tokenizer else None
  engine = lambda num_shards: contextlib.nullcontext(Here(reverse))
  inputs = [str(inputs)] if not isinstance(inputs, list) else [str(path) for path in inputs]
  made = planning.Settings(**settings)
  return preparing.prepare(inputs, str(folder), made, engine, row_format, stopped_by=stopped_by)


def command(capsys, folder, monkeypatch):
  """A function from words to (status, stdout, stderr) of `official-ext prepare` in a folder, in this process."""
  monkeypatch.chdir(folder)

  def run(*words):
    status = main.main(['prepare', *map(str, words)])
    return (status, *capsys.readouterr())

  return run


@contextlib.contextmanager
def started(folder, *words):
  """`official-ext prepare` as a separate process."""
  command = [sys.executable, '-m', 'official_ext.cli.main', 'prepare', *words]
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  process = subprocess.Popen(
    command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  try:
    yield process
  finally:
    process.kill()
    process.communicate()


def documents(number, first=0):
  """Records with texts of several lengths."""
  return [
    {'text': f'Text {n} has ' + ' '.join(f'word{n * k % 11}' for k in range(n % 17)) + '.'}
    for n in range(first, first + number)
  ]


def write_lines(path, records):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(json.dumps(record, ensure_ascii=False) + '\n' for record in records))
  return path


def write_images(folder, classes=('cat [1]', 'dog *'), number=5):
  """Images whose colour is their number in their class."""
  for label, name in enumerate(classes):
    (folder / name).mkdir(parents=True)
    for n in range(number):
      Image.new('RGB', (4 + n, 4), (n, label, 0)).save(folder / name / f'{n}.png')
  return folder


def shard_bytes(folder):
  """From the name of each shard to its content."""
  return {path.name: path.read_bytes() for path in sorted(folder.glob('*.array_record'))}
