"""SLURM: a batch script whose step is train.py, and which requeues itself.

It relies on these properties of SLURM 22.05. `--signal=TERM@N` without B, `scontrol requeue` and `scancel` each send
the tasks of a step one SIGTERM: they save and end with 75. The batch shell ignores its own SIGTERM, and lives until
they have ended. A cancelled or requeued job is COMPLETING then, and not RUNNING: the script requeues only a RUNNING
one. An element of an array is named ARRAY_INDEX: the number alone may mean all of them.
"""

import argparse
from collections.abc import Iterator
import os
import re
import shlex
import sys
from typing import Any

from official_ext.base import errors
from official_ext.operations.engines import jobs
from official_ext.operations.runs import driver

SUMMARY = 'a batch script; options as of sbatch'
OPTIONS: dict[str, dict[str, Any]] = {
  'nodes': jobs.nodes_option('machines'),
  'tasks_per_node': {'least': 1, 'default': 1, 'metavar': 'N', 'help': 'workers of each; default: 1'},
  'gpus': {'metavar': 'N', 'help': 'GPUs of a worker, such as 1 or a100:1'},
  'cpus': {'least': 1, 'metavar': 'N', 'help': 'cores of a worker'},
  'memory': {'metavar': 'SIZE', 'help': 'memory of a machine'},
  'time': {'metavar': 'TIME', 'help': 'the time limit, such as 12:00:00'},
  'partition': {'metavar': 'NAME', 'help': 'the partition'},
  'account': {'metavar': 'NAME', 'help': 'the account'},
  'signal_seconds': {
    'least': 1,
    'default': 120,
    'metavar': 'N',
    'help': 'when to save before the time limit; default: 120',
  },
  'slots': {'least': 1, 'metavar': 'N', 'help': 'runs of a queue or of --array at the same time'},
}
NEEDS_ABSOLUTE = False
HAS_ARRAYS = True
MAX_RESTARTS = 100

# The names of sbatch for flags of this command.
_RESOURCES = {
  'gpus': 'gpus-per-task',
  'cpus': 'cpus-per-task',
  'memory': 'mem',
  'partition': 'partition',
  'account': 'account',
}
_OURS = (
  *('nodes', 'ntasks-per-node', 'gpus-per-task', 'cpus-per-task', 'mem', 'time', 'partition', 'account', 'signal'),
  *('requeue', 'no-requeue', 'open-mode', 'output', 'chdir', 'array', 'job-name', 'wrap', 'parsable'),
)
# %s: the most restarts.
_END = """
trap : TERM  # SLURM signals the step too, which saves and ends: this shell waits for that.
"${srun[@]}" "${command[@]}" &
step=$!
while wait "$step"; status=$?; kill -0 "$step" 2>/dev/null; do :; done

# 75: preempted, and can resume; more than 128: killed. A job that was cancelled, or that SLURM requeues itself, does
# not run now.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
job=${job:-$SLURM_JOB_ID}
if [ "$status" -eq 75 ] || [ "$status" -gt 128 ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -ge %s ]; then
    echo "submit: status $status, and not retried: restarted $SLURM_RESTART_COUNT times" >&2
  elif [[ $(scontrol show job -o "$job") == *" JobState=RUNNING "* ]]; then
    echo "submit: status $status: requeued" >&2
    scontrol requeue "$job"
  fi
fi
exit "$status"
"""


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The batch script; see jobs.py."""
  lines = ['#!/bin/bash', *(f'#SBATCH {_header(*pair)}' for pair in _headers(job, options))]
  jobs.refuse_several(options.engine_arg, _OURS)
  for text in options.engine_arg:
    name, equals, value = text.partition('=')
    lines.append(f'#SBATCH {_header(name.lstrip("-"), value if equals else None)}')
  lines += ['', f'cd {shlex.quote(job.cwd)} || exit 2']
  lines += [f'export {name}={shlex.quote(value)}' for name, value in job.env.items()]
  lines += [
    f'srun=({shlex.join(_srun(options))})',
  ]
  if job.is_array:
    lines.append('case "$SLURM_ARRAY_TASK_ID" in')
    for number, trial in enumerate(job.trials, 1):
      lines.append(f'{number}) model_dir={shlex.quote(trial.model_dir)}; command=({_command(job, trial)}) ;;')
    lines += ['*) exit 2 ;;', 'esac', 'exec >>"$model_dir/run.log" 2>&1']
  else:
    lines.append(f'command=({_command(job, job.trials[0])})')
  return '\n'.join(lines) + _END % (MAX_RESTARTS if job.max_restarts is None else job.max_restarts)


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Submits by sbatch; see jobs.py."""
  del options
  answer = jobs.call(['sbatch', '--parsable'], 'slurm', text, job.cwd)
  number = answer.strip().splitlines()[-1].partition(';')[0] if answer.strip() else ''
  if not re.fullmatch(r'\d+', number):
    raise errors.UserError(
      f'sbatch: has answered {answer.strip()!r}, in which no job is named; `squeue --me` lists them'
    )
  return number


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether SLURM still has a job that waits, runs or ends; see jobs.py."""
  del options
  status, output = jobs.output_of(['squeue', '--noheader', '--jobs', name, '--format=%T'])
  if status == 127:
    return None
  return status == 0 and bool(output.strip())  # A number that is too old is an error.


def trial_name(name: str, number: int) -> str:
  """The name of an element of an array."""
  return f'{name}_{number}'


def _headers(job: jobs.Job, options: argparse.Namespace) -> Iterator[tuple[str, object]]:
  yield 'job-name', job.name
  yield 'nodes', options.nodes
  yield 'ntasks-per-node', options.tasks_per_node
  for name, option in _RESOURCES.items():
    if getattr(options, name) is not None:
      yield option, getattr(options, name)
  if options.time is not None:  # sbatch has further forms, but none in seconds.
    is_in_seconds = re.fullmatch(r'[0-9]{1,9}s', options.time)
    yield 'time', '{}:{:02d}'.format(*divmod(int(options.time[:-1]), 60)) if is_in_seconds else options.time
  if job.is_array:
    yield 'array', f'1-{len(job.trials)}' + (f'%{options.slots}' if options.slots else '')
  elif options.slots:
    raise errors.UserError('--slots: is for --array, how many trials run at once')
  yield 'requeue', None
  yield 'signal', f'TERM@{options.signal_seconds}'
  yield 'open-mode', 'append'
  yield 'chdir', job.cwd
  if '\\' in job.folder:
    raise errors.UserError(f'{job.folder}: SLURM takes no output to a folder with a backslash; choose another')
  path = job.folder.replace('%', '%%')
  yield 'output', os.path.join(path, 'slurm-%A_%a.log') if job.is_array else jobs.log_path(path, job.mode)


def _header(name: str, value: object) -> str:
  """An option as sbatch reads it in a script: its own quotes, in which a backslash escapes, and one line."""
  if value is None:
    return f'--{name}'
  text = str(value)
  if not text.isprintable():
    raise errors.UserError(f'--{name}={text!r}: a batch script has no way to say this; use printable letters')
  if re.fullmatch(r'[\w@%+=:,./-]*', text):
    return f'--{name}={text}'
  return f'--{name}="' + re.sub(r'(["\\])', r'\\\1', text) + '"'


def _srun(options: argparse.Namespace) -> list[str]:
  # A worker that ends must not end others that still save; they end by themselves when they miss it.
  words = ['srun', '--kill-on-bad-exit=0', '--wait=0', '--distribution=block']
  return words + ([f'--cpus-per-task={options.cpus}'] if options.cpus else [])


def _command(job: jobs.Job, trial: jobs.Trial) -> str:
  return shlex.join([sys.executable, *driver.program_words(job.program), *trial.flags])
