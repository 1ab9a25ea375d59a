"""Kubernetes: a JobSet (jobset.x-k8s.io/v1alpha2) of one Indexed Job, a pod for each worker.

How it ends, by the exit status of train.py in a pod:

    75        preempted, and can resume: the Job makes a new pod in its place, which is not counted
    2, 3      a mistake, or diverged: a retry would fail again, so the Job fails, and the JobSet with it
    others    the Job fails, and the JobSet restarts all its pods, --max_restarts times

TF_CONFIG has the names that JobSet gives pods, JOBSET-workers-JOB-POD.JOBSET. Kubernetes adds the index of the pod: it
replaces `$(NAME)` in variables, and in commands, where `$$` is a dollar.
"""

import argparse
import json
from typing import Any

from official_ext.base import errors
from official_ext.operations.engines import jobs
from official_ext.operations.runs import driver

SUMMARY = 'a JobSet of Kubernetes'
OPTIONS: dict[str, dict[str, Any]] = {
  'image': {'required': True, 'metavar': 'IMAGE', 'help': 'of the container'},
  'nodes': jobs.nodes_option('pods, each a worker'),
  'gpus': {'least': 0, 'default': 0, 'metavar': 'N', 'help': 'GPUs of a worker'},
  'cpus': {'metavar': 'N', 'help': 'cores of a worker'},
  'memory': {'metavar': 'SIZE', 'help': 'memory of a worker'},
  'namespace': {'metavar': 'NAME', 'help': 'the namespace'},
  'volume_claim': {'metavar': 'NAME', 'help': 'the volume of the model_dir'},
  'mount_path': {'metavar': 'PATH', 'help': 'the path of that volume'},
  'secret': {'metavar': 'NAME', 'help': 'a Secret, whose entries become variables'},
  'grace_seconds': {'least': 0, 'default': 120, 'metavar': 'N', 'help': 'time to save after SIGTERM; default: 120'},
}
NEEDS_ABSOLUTE = True
HAS_ARRAYS = False
MAX_RESTARTS = 3

_PORT = 2222
_JOB = 'workers'
_CONTAINER = 'train'
_INDEX = 'OFFICIAL_EXT_INDEX'


def render(job: jobs.Job, options: argparse.Namespace) -> str:
  """The manifest; see jobs.py."""
  pods = {
    'completionMode': 'Indexed',
    'completions': options.nodes,
    'parallelism': options.nodes,
    'backoffLimit': 0,
    'podFailurePolicy': {
      'rules': [
        {'action': 'FailJob', 'onExitCodes': {'containerName': _CONTAINER, 'operator': 'In', 'values': [2, 3, 4]}},
        {'action': 'Ignore', 'onExitCodes': {'containerName': _CONTAINER, 'operator': 'In', 'values': [75]}},
        {'action': 'Ignore', 'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}]},
      ]
    },
    'template': {'spec': _pod(job, options)},
  }
  manifest = {
    'apiVersion': 'jobset.x-k8s.io/v1alpha2',
    'kind': 'JobSet',
    'metadata': {'name': job.name, **({'namespace': options.namespace} if options.namespace else {})},
    'spec': {
      'network': {'enableDNSHostnames': True, 'subdomain': job.name},
      'failurePolicy': {
        'maxRestarts': MAX_RESTARTS if job.max_restarts is None else job.max_restarts,
        'rules': [{'name': 'mistakes', 'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}],
      },
      'replicatedJobs': [{'name': _JOB, 'replicas': 1, 'template': {'spec': pods}}],
    },
  }
  return jobs.yaml_document(manifest, options.engine_arg)


def submit(job: jobs.Job, options: argparse.Namespace, text: str) -> str:
  """Creates it by kubectl, which refuses a name that is taken; see jobs.py."""
  jobs.call(['kubectl', 'create', *_namespace(options), '--filename=-'], 'jobset', text, job.cwd)
  return job.name


def is_active(name: str, options: argparse.Namespace) -> bool | None:
  """Whether there is a JobSet that has neither completed nor failed; see jobs.py."""
  words = ['kubectl', 'get', 'jobset', name, *_namespace(options), '--ignore-not-found', '--output=json']
  status, output = jobs.output_of(words)
  if status:
    return None
  try:
    return bool(output.strip()) and not json.loads(output).get('status', {}).get('terminalState')
  except (ValueError, AttributeError):
    return None


def _pod(job: jobs.Job, options: argparse.Namespace) -> dict[str, object]:
  workers = [f'{job.name}-{_JOB}-0-{index}.{job.name}:{_PORT}' for index in range(options.nodes)]
  cluster = json.dumps({'worker': workers})
  env: list[dict[str, object]] = [{'name': name, 'value': _literal(value)} for name, value in job.env.items()]
  if options.nodes > 1:
    field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    value = f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": $({_INDEX})}}}}'
    env += [
      {'name': _INDEX, 'valueFrom': {'fieldRef': {'fieldPath': field}}},  # Before the parts that refer to it.
      {'name': 'TF_CONFIG', 'value': value},
    ]
  container: dict[str, object] = {
    'name': _CONTAINER,
    'image': options.image,
    'command': [_literal(word) for word in ('python', *driver.program_words(job.program), *job.flags)],
    'ports': [{'containerPort': _PORT}],
  }
  if env:
    container['env'] = env
  if options.secret:
    container['envFrom'] = [{'secretRef': {'name': options.secret}}]
  limits = {'nvidia.com/gpu': options.gpus or None, 'cpu': options.cpus, 'memory': options.memory}
  limits = {name: str(value) for name, value in limits.items() if value is not None}
  if limits:
    container['resources'] = {'limits': limits}
  pod: dict[str, object] = {
    'restartPolicy': 'Never',
    'terminationGracePeriodSeconds': options.grace_seconds,
    'containers': [container],
  }
  if bool(options.volume_claim) != bool(options.mount_path):
    raise errors.UserError('--volume_claim: the claim and --mount_path, where its volume appears, belong together')
  if options.volume_claim:
    container['volumeMounts'] = [{'name': 'runs', 'mountPath': options.mount_path}]
    pod['volumes'] = [{'name': 'runs', 'persistentVolumeClaim': {'claimName': options.volume_claim}}]
  return pod


def _literal(text: str) -> str:
  """A text in which Kubernetes replaces nothing."""
  return text.replace('$', '$$')


def _namespace(options: argparse.Namespace) -> list[str]:
  return [f'--namespace={options.namespace}'] if options.namespace else []
