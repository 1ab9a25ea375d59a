"""Steps a second of train.py on several replicas and in several processes of this machine, from the runs' records."""

from collections.abc import Sequence
import json
import pathlib
import statistics
import subprocess
import sys

from benchmarks.peers import process

# Replicas of a process, processes. The global batch is the same for all, as everywhere in this library.
SPLITS = ((1, 1), (2, 1), (4, 1), (1, 2))
# Experiment -> its flags, steps of a loop.
SUBJECTS = {
  'digits_mlp': ((), 500),
  'language_model': (('--set=task.model.num_hidden_layers=2', '--set=task.model.hidden_size=128'), 10),
}
_LENGTHS = ('steps_per_loop', 'summary_interval', 'checkpoint_interval', 'validation_interval')


def command(experiment: str, replicas: int, processes: int, folder: pathlib.Path, num_loops: int = 5) -> list[str]:
  """The command of a run of so many loops."""
  options, loop = SUBJECTS[experiment]
  flags = [f'--experiment={experiment}', '--mode=train', f'--model_dir={folder}', *options]
  flags += [f'--set=trainer.{name}={loop}' for name in _LENGTHS] + [f'--set=trainer.train_steps={num_loops * loop}']
  if replicas > 1:
    flags += [f'--set=runtime.num_virtual_cpus={replicas}', '--set=runtime.distribution_strategy=mirrored']
  if processes > 1:
    return [sys.executable, '-m', 'official_ext.cli.launch', f'--num_workers={processes}', '--', *flags]
  return [sys.executable, 'train.py', *flags]


def rates(folder: pathlib.Path) -> list[float]:
  """Steps a second of the loops of a run; those whose program was compiled meanwhile have none."""
  events = [json.loads(line) for line in (folder / 'events.jsonl').read_text(encoding='utf-8').splitlines()]
  return [event['steps_per_second'] for event in events if event['event'] == 'train' and 'steps_per_second' in event]


def milliseconds(experiment: str, replicas: int, processes: int, folder: pathlib.Path) -> float:
  """Of a step: the median of the loops.

  Raises:
    SystemExit: the run has failed.
  """
  done = subprocess.run(
    command(experiment, replicas, processes, folder), cwd=process.ROOT, capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise SystemExit(f'{experiment}: has ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}')
  return 1e3 / statistics.median(rates(folder))


def table(names: Sequence[str], folder: pathlib.Path) -> list[str]:
  """Lines of Markdown, measured now."""
  lines = ['| experiment | replicas | processes | ms a step | times one |', '|---|---|---|---|---|']
  for name in names:
    found = [milliseconds(name, *split, folder / f'{name}-{split[0]}-{split[1]}') for split in SPLITS]
    for split, value in zip(SPLITS, found):
      lines.append(f'| {name} | {split[0]} | {split[1]} | {value:.3g} | {value / found[0]:.2f} |')
  return lines
