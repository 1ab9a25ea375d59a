"""Vertex AI: the specification of a CustomJob, for `gcloud ai custom-jobs create --config`. No TensorFlow.

Vertex sets TF_CONFIG in each container itself: the first pool, of one machine, is the chief, the second the workers.
By its documentation it starts a worker again that has ended with an error which is not one of its permanent ones, five
times, and then the job, three times: so it does not distinguish status 75, after which a run resumes, from others.
"""

import argparse
import json
import os
import tempfile
from typing import Any

from official_ext.base import errors
from official_ext.operations.engines import jobs
from official_ext.operations.runs import programs

SUMMARY = 'a CustomJob of Vertex AI'
OPTIONS: dict[str, dict[str, Any]] = {
  'image': {'required': True, 'metavar': 'IMAGE', 'help': 'of the container'},
  'machine_type': {'required': True, 'metavar': 'TYPE', 'help': 'such as n1-standard-8'},
  'region': {'required': True, 'metavar': 'NAME', 'help': 'such as europe-west4'},
  'project': {'metavar': 'NAME', 'help': 'the project'},
  'nodes': jobs.nodes_option('machines'),
  'accelerator': {'metavar': 'TYPE', 'help': 'such as NVIDIA_L4'},
  'gpus': {'least': 1, 'metavar': 'N', 'help': 'GPUs of a machine'},
  'time': {'metavar': 'TIME', 'help': 'the time limit, such as 12:00:00'},
  'service_account': {'metavar': 'NAME', 'help': 'the service account'},
}
NEEDS_ABSOLUTE = True
HAS_ARRAYS = False

_OVER = ('JOB_STATE_SUCCEEDED', 'JOB_STATE_FAILED', 'JOB_STATE_CANCELLED', 'JOB_STATE_EXPIRED')


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The CustomJobSpec; see jobs.py."""
  if bool(options.accelerator) != bool(options.gpus):
    raise errors.UserError('--accelerator: its type, such as NVIDIA_L4, and --gpus, how many, belong together')
  if job.max_restarts is not None:
    raise errors.UserError('--max_restarts: Vertex counts its restarts itself; leave it out')
  machine: dict[str, object] = {'machineType': options.machine_type}
  if options.accelerator:
    machine |= {'acceleratorType': options.accelerator, 'acceleratorCount': options.gpus}
  for word in job.flags:
    if '$(' in word:
      raise errors.UserError(
        f'{word}: Vertex might replace $(...), and has no quotes for it; give this in a config file'
      )
  container: dict[str, object] = {
    'imageUri': options.image,
    'command': ['python', *programs.words(job.program)],
    'args': list(job.flags),
  }
  if job.env:
    # Vertex replaces $(NAME); $$ keeps it.
    container['env'] = [{'name': name, 'value': value.replace('$(', '$$(')} for name, value in job.env.items()]
  pools = [
    {'machineSpec': machine, 'replicaCount': count, 'containerSpec': container}
    for count in (1, options.nodes - 1)
    if count
  ]
  scheduling: dict[str, object] = {'restartJobOnWorkerRestart': True}
  if options.time:
    scheduling['timeout'] = f'{jobs.seconds_of(options.time)}s'
  spec = {'workerPoolSpecs': pools, 'scheduling': scheduling}
  if options.service_account:
    spec['serviceAccount'] = options.service_account
  return jobs.yaml_document(spec, options.engine_arg)


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Creates it by gcloud; see jobs.py."""
  with tempfile.TemporaryDirectory() as folder:  # Which nobody else can read.
    path = os.path.join(folder, 'job.yaml')
    with open(path, 'w', encoding='utf-8') as file:
      file.write(text)
    words = ['gcloud', 'ai', 'custom-jobs', 'create', f'--display-name={job.name}', f'--config={path}', '--format=json']
    answer = jobs.call([*words, *_place(options)], 'vertex')
  try:
    return str(json.loads(answer)['name'])
  except (ValueError, KeyError, TypeError):
    raise errors.UserError(
      f'gcloud: has answered {answer.strip()[:200]!r}, in which no job is named; look there'
    ) from None


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether a job is in none of the states in which it ends; see jobs.py."""
  words = ['gcloud', 'ai', 'custom-jobs', 'describe', name, '--format=value(state)', *_place(options)]
  status, output = jobs.output_of(words)
  return None if status else output.strip() not in _OVER


def _place(options: argparse.Namespace) -> list[str]:
  return [f'--region={options.region}', *([f'--project={options.project}'] if options.project else [])]
