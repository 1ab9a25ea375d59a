"""Jobs as the command renders and submits them, with the commands of engines in their place."""

import os
import pathlib
import shutil
import sys

from official_ext.cli import main

ODD = (
  '--set=a=one two',
  "--set=b='it''s'",
  '--set=c="$HOME $(id) ${x} `id`"',
  '--set=d=one\ntwo # three',
  '--set=e=\\',
)
WORDS = {
  'local': ('--nodes=2',),
  'slurm': ('--nodes=2', '--tasks_per_node=4', '--time=4:00:00', '--partition=gpu', '--gpus=1'),
  'ray': ('--nodes=2', '--address=http://127.0.0.1:8265'),
  'jobset': ('--image=registry/train:1', '--nodes=2', '--gpus=1', '--volume_claim=runs', '--mount_path=/runs'),
}


def text(capsys, engine, *words, flags=(), model_dir='/runs/a', status=0) -> str:
  """The output of `submit --render`, or its error."""
  found = main.main(
    ['submit', f'--engine={engine}', '--render', *WORDS[engine], *words, '--', f'--model_dir={model_dir}', *flags]
  )
  out, err = capsys.readouterr()
  assert found == status, err
  return out if status == 0 else err


def fake(folder: pathlib.Path, name: str, script: str) -> None:
  """A command in a folder; the words it gets are lines of NAME.words there, its input is NAME.input."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / name
  path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >> "$0.words"\n{script}\n')
  path.chmod(0o755)


def path_of(folder: pathlib.Path) -> str:
  """A PATH with nothing but the commands in a folder and those of the system that scripts need."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in ('bash', 'cat', 'tr', 'od', 'env', 'echo', 'sed', 'paste', 'sleep', 'kill'):
    found = shutil.which(name)
    if found and not (folder / name).exists():
      os.symlink(found, folder / name)
  return str(folder)


def words_of(folder: pathlib.Path, name: str) -> str:
  """The words that a fake command was given."""
  return (folder / f'{name}.words').read_text()


PYTHON = sys.executable
