"""Tests of the manifests: against JobSet's published schema of the fields in use, and by running them.

The schema here is reduced by hand from JobSet's CustomResourceDefinition: the fields that are rendered, and no others.
"""

import json
import os
import re

import jsonschema
import pytest
import yaml

from official_ext.base import config_text
from official_ext.training.devices import cluster as cluster_lib
from tests.operations.engines import rendered

_TEXT = {'type': 'string'}
_INTEGER = {'type': 'integer'}


def _object(required=(), **properties):
  return {
    'type': 'object',
    'properties': properties,
    'required': list(required),
    'additionalProperties': False,
  }


def _list(items):
  return {'type': 'array', 'items': items}


def _map(values):
  return {'type': 'object', 'additionalProperties': values}


_ENV = _object(
  ['name'],
  name=_TEXT,
  value=_TEXT,
  valueFrom=_object(fieldRef=_object(['fieldPath'], fieldPath=_TEXT)),
)
_CONTAINER = _object(
  ['name'],
  name=_TEXT,
  image=_TEXT,
  command=_list(_TEXT),
  args=_list(_TEXT),
  env=_list(_ENV),
  envFrom=_list(_object(secretRef=_object(name=_TEXT))),
  ports=_list(_object(['containerPort'], containerPort=_INTEGER)),
  resources=_object(limits=_map({'anyOf': [_INTEGER, _TEXT]})),
  volumeMounts=_list(_object(['name', 'mountPath'], name=_TEXT, mountPath=_TEXT)),
)
_POD = _object(
  ['containers'],
  restartPolicy={'enum': ['Never']},  # As a podFailurePolicy requires.
  terminationGracePeriodSeconds=_INTEGER,
  containers=_list(_CONTAINER),
  volumes=_list(_object(['name'], name=_TEXT, persistentVolumeClaim=_object(['claimName'], claimName=_TEXT))),
  nodeSelector=_map(_TEXT),
)
_POD_RULE = _object(
  ['action'],
  action={'enum': ['FailJob', 'FailIndex', 'Ignore', 'Count']},
  onExitCodes=_object(
    ['operator', 'values'], containerName=_TEXT, operator={'enum': ['In', 'NotIn']}, values=_list(_INTEGER)
  ),
  onPodConditions=_list(_object(['type'], type=_TEXT, status=_TEXT)),
)
_JOB = _object(
  ['template'],
  completionMode={'enum': ['Indexed', 'NonIndexed']},
  completions=_INTEGER,
  parallelism=_INTEGER,
  backoffLimit=_INTEGER,
  podFailurePolicy=_object(['rules'], rules=_list(_POD_RULE)),
  template=_object(spec=_POD),
)
_ACTIONS = ['FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts']
_FAILURE_RULE = _object(['action', 'name'], name=_TEXT, action={'enum': _ACTIONS}, onJobFailureReasons=_list(_TEXT))
_SPEC = _object(
  network=_object(enableDNSHostnames={'type': 'boolean'}, subdomain=_TEXT),
  failurePolicy=_object(maxRestarts=_INTEGER, rules=_list(_FAILURE_RULE)),
  replicatedJobs=_list(
    _object(['name', 'template'], name=_TEXT, replicas=_INTEGER, template=_object(spec=_JOB)),
  ),
  ttlSecondsAfterFinished=_INTEGER,
)
SCHEMA = _object(
  ['apiVersion', 'kind', 'metadata', 'spec'],
  apiVersion={'const': 'jobset.x-k8s.io/v1alpha2'},
  kind={'const': 'JobSet'},
  metadata=_object(['name'], name={'type': 'string', 'pattern': '^[a-z]([-a-z0-9]*[a-z0-9])?$'}, namespace=_TEXT),
  spec=_SPEC,
)


def _manifest(capsys, engine, *words, flags=rendered.ODD):
  """The manifest, as the readers of YAML 1.1 and 1.2 have it, which must be the same."""
  text = rendered.text(capsys, engine, *words, flags=flags)
  values = yaml.safe_load(text)
  assert values == config_text.load(text, engine)
  jsonschema.validate(values, SCHEMA)
  return values


def _expanded(text, variables):
  """Kubernetes' expansion of a text: $$ is a dollar, $(NAME) a variable that is known."""
  return re.sub(
    r'\$(?:\$|\((\w+)\))',
    lambda match: '$' if match[0] == '$$' else variables.get(match[1], match[0]),
    text,
  )


def test_a_pod_of_a_jobset_is_a_worker_of_the_cluster(capsys):
  values = _manifest(capsys, 'jobset', '--env=A=$(B) 010', '--secret=keys', '--namespace=yes')
  assert values['metadata'] == {'name': 'a', 'namespace': 'yes'}
  (replicated,) = values['spec']['replicatedJobs']
  job = replicated['template']['spec']
  assert (job['completions'], job['parallelism'], job['backoffLimit']) == (2, 2, 0)
  (container,) = job['template']['spec']['containers']
  assert [_expanded(word, {}) for word in container['command']] == [
    *('python', '-u', 'train.py', '--model_dir=/runs/a', *rendered.ODD)
  ]
  environment = {}
  for each in container['env']:  # In their order: one may name those before it.
    if 'valueFrom' in each:
      assert each['valueFrom']['fieldRef']['fieldPath'].endswith("['batch.kubernetes.io/job-completion-index']")
    environment[each['name']] = _expanded(each['value'], environment) if 'value' in each else '1'
  assert environment['A'] == '$(B) 010'
  found = cluster_lib.find(environment)
  assert found.addresses == ('a-workers-0-0.a:2222', 'a-workers-0-1.a:2222') and found.index == 1
  assert container['resources']['limits'] == {'nvidia.com/gpu': '1'}


def test_statuses_of_a_jobset(capsys):
  spec = _manifest(capsys, 'jobset', '--max_restarts=7')['spec']
  assert spec['failurePolicy']['maxRestarts'] == 7
  rules = spec['replicatedJobs'][0]['template']['spec']['podFailurePolicy']['rules']
  actions = {status: rule['action'] for rule in rules for status in rule.get('onExitCodes', {}).get('values', [])}
  assert actions == {75: 'Ignore', 2: 'FailJob', 3: 'FailJob', 4: 'FailJob'}
  (rule,) = spec['failurePolicy']['rules']
  assert (rule['action'], rule['onJobFailureReasons']) == ('FailJobSet', ['PodFailurePolicy'])


def test_one_worker_needs_no_cluster(capsys):
  assert 'TF_CONFIG' not in rendered.text(capsys, 'jobset', '--nodes=1')


@pytest.mark.parametrize(
  ('argument', 'expected'),
  [
    ('spec.ttlSecondsAfterFinished=100', ('spec', 'ttlSecondsAfterFinished', 100)),
    ('spec.replicatedJobs.0.template.spec.template.spec.nodeSelector={pool: "on"}', None),
    ('spec.replicatedJobs.3.name=a', 'no such element'),
    ('kind.a=1', 'has nothing inside'),
    ('spec', 'expected PATH=VALUE'),
  ],
)
def test_what_has_no_option_is_put_into_the_manifest(capsys, argument, expected):
  if isinstance(expected, str):
    assert expected in rendered.text(capsys, 'jobset', f'--engine_arg={argument}', status=2)
    return
  values = _manifest(capsys, 'jobset', f'--engine_arg={argument}')
  if expected:
    assert values[expected[0]][expected[1]] == expected[2]
  else:
    pod = values['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']
    assert pod['nodeSelector'] == {'pool': 'on'}


def test_what_a_container_cannot_reach_is_refused(capsys):
  assert 'container' in rendered.text(capsys, 'jobset', model_dir='runs/a', status=2)
  assert 'gs://bucket/a' in rendered.text(capsys, 'jobset', model_dir='gs://bucket/a')
  assert '--image' in rendered.text(capsys, 'jobset', '--image', status=2)
  assert 'belong together' in rendered.text(capsys, 'jobset', '--mount_path=', status=2)
  assert os.getcwd() not in rendered.text(capsys, 'jobset')


def test_the_job_of_ray_is_what_its_driver_reads(capsys):
  spec = json.loads(rendered.text(capsys, 'ray', flags=rendered.ODD))
  assert spec['runs'][0][-len(rendered.ODD) :] == list(rendered.ODD)
  assert (spec['num_workers'], spec['max_restarts'], spec['cwd']) == (2, 3, os.getcwd())
