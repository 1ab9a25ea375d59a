"""Tests for cluster: environment variables to workers."""

import json

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.devices import cluster


def _tf_config(task, **jobs):
  return {'TF_CONFIG': json.dumps({'cluster': jobs, 'task': task})}


def _slurm(rank, nodes, counts, **values):
  """The variables of one task of a job step, as srun sets them."""
  places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
  return {
    'SLURM_JOB_ID': '4711',
    'SLURM_STEP_ID': '0',
    'SLURM_STEP_NUM_TASKS': str(sum(counts)),
    'SLURM_NTASKS': str(sum(counts)),
    'SLURM_STEP_NODELIST': nodes,
    'SLURM_STEP_TASKS_PER_NODE': ','.join(map(str, counts)),
    'SLURM_PROCID': str(rank),
    'SLURM_NODEID': str(places[rank][0]),
    'SLURM_LOCALID': str(places[rank][1]),
    **values,
  }


def test_no_cluster():
  assert cluster.find({}) is None
  assert cluster.find(_tf_config({'type': 'worker', 'index': 0}, worker=['a:1'])) is None
  assert cluster.find(_tf_config({'type': 'evaluator', 'index': 0}, worker=['a:1', 'b:1'])) is None
  assert cluster.find(_tf_config({'type': 'worker', 'index': 0}, worker=['a:1'], chief=['b:1'], ps=['c:1'])) is None
  assert cluster.find(_slurm(0, 'n1', [1])) is None
  # The variables of salloc for the shell in it, which is not a task of a step.
  assert cluster.find({'SLURM_NTASKS': '4', 'SLURM_JOB_NODELIST': 'n[1-4]'}) is None


def test_tf_config():
  found = cluster.find(_tf_config({'type': 'worker', 'index': 1}, worker=['a:1', 'b:2']))
  assert found == cluster.Cluster(('a:1', 'b:2'), 1)
  assert not found.is_chief and found.name(1) == 'worker 1 (b:2)'
  jobs = {'worker': ['b:2', 'c:3'], 'chief': ['a:1']}
  assert cluster.find(_tf_config({'type': 'chief', 'index': 0}, **jobs)) == cluster.Cluster(('a:1', 'b:2', 'c:3'), 0)
  assert cluster.find(_tf_config({'type': 'worker', 'index': 0}, **jobs)).index == 1


def test_indices_are_read_as_tensorflow_reads_them(monkeypatch):
  for index in ('1', 1, 1.0):
    environment = _tf_config({'type': 'worker', 'index': index}, worker=['a:1', 'b:2'])
    monkeypatch.setenv('TF_CONFIG', environment['TF_CONFIG'])
    assert cluster.find(environment).index == tf.distribute.cluster_resolver.TFConfigClusterResolver().task_id


@pytest.mark.parametrize('jobs', [{}, {'chief': ['a:1'], 'worker': ['b:1']}, {'worker': ['a:1'], 'ps': ['c:1']}])
def test_an_evaluator_evaluates(jobs):
  # Its index is of a list that the cluster does not have.
  environment = _tf_config({'type': 'evaluator', 'index': 3}, **jobs)
  assert cluster.find(environment) is None
  for mode in ('train', 'train_and_eval', 'train_and_post_eval'):
    with pytest.raises(errors.UserError, match=f'^--mode={mode}: .* start it with --mode=continuous_eval$'):
      cluster.check_mode(mode, environment)
    cluster.check_mode(mode, {})
  for mode in ('eval', 'continuous_eval'):
    cluster.check_mode(mode, environment)


@pytest.mark.parametrize(
  'environment',
  [
    {'TF_CONFIG': 'worker,ps'},
    {'TF_CONFIG': '[1]'},
    {'TF_CONFIG': '{"cluster": {"worker": 3}}'},
    _tf_config({'type': 'worker', 'index': 2}, worker=['a:1', 'b:2']),
    _tf_config({'type': 'work', 'index': 0}, worker=['a:1', 'b:2']),
    _tf_config({}, worker=['a:1', 'b:2']),
    _tf_config({'type': 'worker', 'index': 1}, worker=['a:1']),
    _tf_config({'type': 'worker', 'index': -1}, worker=['a:1', 'b:2']),
    _tf_config({'type': 'worker', 'index': 'x'}, worker=['a:1', 'b:2']),
    _tf_config({'type': 'chief', 'index': 0}, worker=['a:1', 'b:2']),
    _tf_config({'type': 'ps', 'index': 1}, worker=['a:1', 'b:2'], ps=['c:1']),
    _tf_config({'type': 'worker', 'index': 0}, worker=['a', 'b:2']),
  ],
)
def test_tf_config_that_makes_no_sense(environment):
  with pytest.raises(errors.UserError, match='^TF_CONFIG: '):
    cluster.find(environment)


@pytest.mark.parametrize(
  ('text', 'hosts'),
  [
    ('localhost', ['localhost']),
    ('n[8-11]', ['n8', 'n9', 'n10', 'n11']),  # In this order, though n10 sorts before n8.
    ('n[08-10,12],m5', ['n08', 'n09', 'n10', 'n12', 'm5']),
    ('rack[1-2]n[1-2].local', ['rack1n1.local', 'rack1n2.local', 'rack2n1.local', 'rack2n2.local']),
  ],
)
def test_node_lists(text, hosts):
  assert cluster.expand_hosts(text) == hosts


@pytest.mark.parametrize('text', ['', 'n[1-2', 'n1]', 'n[]', 'n[a-b]'])
def test_node_lists_that_are_none(text):
  with pytest.raises(ValueError):
    cluster.expand_hosts(text)


def test_slurm_tasks_find_each_other():
  found = []
  for rank in range(5):
    environment = _slurm(rank, 'n[9-10]', [3, 2])
    found.append(cluster.find(environment))
    assert json.loads(environment['TF_CONFIG'])['task'] == {'type': 'worker', 'index': rank}
  assert [each.index for each in found] == [0, 1, 2, 3, 4]
  assert len({each.addresses for each in found}) == 1
  hosts, ports = zip(*(address.split(':') for address in found[0].addresses))
  assert hosts == ('n9', 'n9', 'n9', 'n10', 'n10')
  first = int(ports[0])
  assert [int(port) - first for port in ports] == [0, 1, 2, 0, 1]
  assert 1024 < first < 32768  # Neither reserved nor among those that the kernel hands out.


def test_slurm_jobs_on_one_node_take_different_ports():
  addresses = set()
  for job in range(4711, 4731):
    addresses.update(cluster.find(_slurm(0, 'n1', [2], SLURM_JOB_ID=str(job))).addresses)
  assert len(addresses) == 2 * 20


def test_slurm_without_the_variables_of_a_step():
  environment = {'SLURM_NTASKS': '4', 'SLURM_JOB_NODELIST': 'n[1-2]', 'SLURM_PROCID': '2', 'SLURM_JOB_ID': '1'}
  found = cluster.find(environment)
  assert [address.split(':')[0] for address in found.addresses] == ['n1', 'n1', 'n2', 'n2'] and found.index == 2
  environment = {**_slurm(4, 'n[1-3]', [2, 2, 1]), 'SLURM_STEP_TASKS_PER_NODE': '2(x2),1'}
  assert [address.split(':')[0] for address in cluster.find(environment).addresses] == ['n1', 'n1', 'n2', 'n2', 'n3']


def test_tf_config_goes_before_slurm():
  environment = {**_slurm(1, 'n1', [2]), **_tf_config({'type': 'worker', 'index': 0}, worker=['a:1', 'b:2'])}
  assert cluster.find(environment).addresses == ('a:1', 'b:2')


@pytest.mark.parametrize(
  'changes',
  [
    {'SLURM_STEP_NODELIST': 'n[1-'},
    {'SLURM_STEP_TASKS_PER_NODE': 'two'},
    {'SLURM_STEP_TASKS_PER_NODE': '1'},
    {'SLURM_PROCID': '7'},
    {'SLURM_STEP_NODELIST': ''},
    {'SLURM_NODEID': '1', 'SLURM_LOCALID': '0'},  # --distribution=cyclic
  ],
)
def test_slurm_variables_that_make_no_sense(changes):
  with pytest.raises(errors.UserError, match='^SLURM: '):
    cluster.find(_slurm(1, 'n1,n2', [2, 2], **changes))
