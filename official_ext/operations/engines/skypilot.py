"""SkyPilot: a task, which `sky jobs launch` runs on some cloud, and again when its machines are lost. No TensorFlow.

TF_CONFIG is made on each machine from SKYPILOT_NODE_IPS and SKYPILOT_NODE_RANK, which SkyPilot sets. A managed job
resumes after status 75 as after lost machines (`job_recovery`).
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from typing import Any

from official_ext.base import errors
from official_ext.operations.engines import jobs
from official_ext.operations.runs import programs

SUMMARY = 'a managed job of SkyPilot'
OPTIONS: dict[str, dict[str, Any]] = {
  'nodes': jobs.nodes_option('machines'),
  'accelerator': {'metavar': 'TYPE', 'help': 'such as L4'},
  'gpus': {'least': 1, 'metavar': 'N', 'help': 'GPUs of a machine; default: 1 with --accelerator'},
  'infra': {'metavar': 'NAME', 'help': 'the cloud'},
  'cpus': {'metavar': 'N', 'help': 'cores of a machine'},
  'memory': {'metavar': 'N', 'help': 'memory of a machine'},
  'image': {'metavar': 'IMAGE', 'help': 'of the container'},
  'use_spot': {'action': 'store_true', 'help': 'use spot instances'},
  'workdir': {'metavar': 'DIR', 'help': 'a folder to copy to the machines'},
  'setup': {'metavar': 'COMMANDS', 'help': 'to run before the job'},
}
NEEDS_ABSOLUTE = True
HAS_ARRAYS = False
MAX_RESTARTS = 3

_PORT = 2222
# In the shell of each machine. The names of machines hold neither quotes nor blanks.
_TF_CONFIG = f"""\
workers=$(echo "$SKYPILOT_NODE_IPS" | sed -e 's/.*/"&:{_PORT}"/' | paste -s -d, -)
export TF_CONFIG="{{\\"cluster\\": {{\\"worker\\": [$workers]}}, \\
\\"task\\": {{\\"type\\": \\"worker\\", \\"index\\": $SKYPILOT_NODE_RANK}}}}"
"""


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The task; see jobs.py."""
  if options.gpus and not options.accelerator:
    raise errors.UserError('--gpus: --accelerator=TYPE, such as L4, must name their type')
  if not (options.workdir or options.setup or options.image):
    print(
      'warning: --workdir, --setup and --image are missing: the machines have neither the files of this folder nor the '
      'library',
      file=sys.stderr,
    )
  restarts = MAX_RESTARTS if job.max_restarts is None else job.max_restarts
  given = {
    'infra': options.infra,
    'accelerators': f'{options.accelerator}:{options.gpus or 1}' if options.accelerator else None,
    'cpus': options.cpus,
    'memory': options.memory,
    'image_id': options.image,
    'use_spot': options.use_spot or None,
  }
  resources: dict[str, object] = {name: value for name, value in given.items() if value is not None}
  resources['job_recovery'] = {'max_restarts_on_errors': restarts, 'recover_on_exit_codes': [75]}
  task: dict[str, object] = {'name': job.name, 'num_nodes': options.nodes, 'resources': resources}
  if options.workdir:
    task['workdir'] = options.workdir
  if job.env:
    task['envs'] = dict(job.env)
  if options.setup:
    task['setup'] = options.setup
  command = f'exec {shlex.join(["python", *programs.words(job.program), *job.flags])}\n'
  task['run'] = (_TF_CONFIG if options.nodes > 1 else '') + command
  return jobs.yaml_document(task, options.engine_arg)


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Launches it as a managed job by sky; see jobs.py."""
  del options
  with tempfile.TemporaryDirectory() as folder:  # Which nobody else can read.
    path = os.path.join(folder, 'task.yaml')
    with open(path, 'w', encoding='utf-8') as file:
      file.write(text)
    jobs.call(['sky', 'jobs', 'launch', '--yes', '--detach-run', f'--name={job.name}', path], 'skypilot', cwd=job.cwd)
  return job.name


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether the managed job of a name is in the queue and has not ended; see jobs.py."""
  del options
  status, output = jobs.output_of(['sky', 'jobs', 'queue', '--skip-finished', '--output=json'])
  if status:
    return None
  try:
    return any(each.get('job_name') == name for each in json.loads(output))
  except (ValueError, TypeError, AttributeError):
    return None
