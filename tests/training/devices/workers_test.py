"""Tests for workers: error messages, and two real processes that talk, disagree and lose each other."""

import json
import re
import textwrap
import time

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.devices import cluster
from official_ext.training.devices import workers

CLUSTER = cluster.Cluster(('10.0.0.1:2000', '10.0.0.2:2000', '10.0.0.3:2000'), 0)
ABORTED = 'Collective ops is aborted by: '

# Two processes with TF_CONFIG run this, and then the code of a test.
_PRELUDE = """
import os, signal, sys, time
import tensorflow as tf
from official_ext.training.checkpoints import manager as checkpoints
from official_ext.training.config import definitions as cfg
from official_ext.training.devices import distribute
from official_ext.base import errors
from official_ext.training.checkpoints import manifests
from official_ext.training.devices import workers as lib
from official_ext.training.devices import cluster as cluster_lib
from official_ext.training.devices import cluster
runtime = cfg.RuntimeConfig(worker_start_timeout_seconds=90, worker_timeout_seconds=20)
me = cluster_lib.find().index

def start():
  global workers
  strategy = distribute.get_strategy(runtime)
  workers = lib.get(strategy)
  return strategy

def report(error):
  print(type(error).__name__ + ':', error, flush=True)
"""


@pytest.fixture
def run_two(unused_ports, start_script):
  """run_two(code, timeout) -> [(exit status, stdout, stderr) of two workers that run `code`]."""

  def run(code, timeout=150):
    addresses = [f'127.0.0.1:{port}' for port in unused_ports(2)]
    scripts = []
    for index in range(2):
      config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
      scripts.append(start_script(_PRELUDE + textwrap.dedent(code), env={'TF_CONFIG': json.dumps(config)}))
    processes = [script.finish(timeout) for script in scripts]
    return [(process.returncode, process.stdout, process.stderr) for process in processes]

  return run


def test_one_worker_talks_to_itself():
  alone = workers.get(tf.distribute.get_strategy())
  assert alone.count == 1 and alone.is_chief
  assert alone.from_chief('topic', lambda: ['a']) == ['a']
  alone.check_same('params', 'text', lambda one, other: ['different'])
  with pytest.raises(tf.errors.UnavailableError), alone.guarded():
    raise tf.errors.UnavailableError(None, None, ABORTED + 'something')


@pytest.mark.parametrize(
  ('message', 'expected'),
  [
    (
      'recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target '
      '/job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:',
      'worker 1 (10.0.0.2:2000) was lost: ',
    ),
    (
      'Error reported from /job:worker/task:2: The following tasks are unhealthy (stopped sending heartbeats):\n'
      '/job:worker/replica:0/task:1\nThe tasks have crashed.',
      'worker 1 (10.0.0.2:2000) was lost: ',
    ),
    (
      'Error reported from /job:worker/task:2: official_ext: worker 2: UserError: no such file\nThe error could be',
      'worker 2 (10.0.0.3:2000) has stopped: UserError: no such file. ',
    ),
    (
      'Task /job:worker/replica:0/task:0 heartbeat timeout. This indicates that the remote task has failed',
      'the connection to the other workers was lost. ',
    ),
  ],
)
def test_what_tensorflow_raises_becomes_one_line(message, expected, monkeypatch):
  monkeypatch.setenv('TF_CONFIG', json.dumps({'cluster': {'worker': list(CLUSTER.addresses)}}))
  several = workers.Workers(CLUSTER)
  cause = tf.errors.UnavailableError(None, None, f'Graph execution error:\n\n{ABORTED}{message}')
  with pytest.raises(errors.WorkerError) as caught, several.guarded():
    raise cause
  assert str(caught.value).startswith(expected) and '\n' not in str(caught.value)
  assert 'Start all workers again' in str(caught.value) and caught.value.__cause__ is cause
  # Also where another error was made of it on the way.
  with pytest.raises(errors.WorkerError), several.guarded():
    raise errors.CheckpointError('could not be saved') from cause


def test_other_errors_are_no_loss_of_a_worker():
  several = workers.Workers(CLUSTER)
  assert several.explain(tf.errors.InvalidArgumentError(None, None, 'shapes differ')) is None
  assert several.explain(ValueError('heartbeat')) is None


def test_workers_talk_disagree_and_notice_an_end(run_two, tmp_path):
  (first, out, err), (second, other_out, other_err) = run_two(f"""
    strategy = start()
    print('value', workers.from_chief('topic', lambda: {{'worker': me}}), workers.from_chief('topic', lambda: 2))
    differences = lambda one, other: [] if one == other else [f'{{one}} -> {{other}}']
    workers.check_same('params', 'all the same', differences)
    try:
      workers.check_same('params', f'steps {{me}}', differences)
    except errors.UserError as error:
      report(error)

    # The chief chooses what is restored, and is the only one to rename.
    def manager(folder):
      with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64)
      checkpoint = tf.train.Checkpoint(step=step)
      return step, checkpoints.CheckpointManager(
          checkpoint, folder, step_counter=step, checkpoint_interval=1,
          is_chief=me == 0, workers=workers)

    step, saver = manager({str(tmp_path / 'shared')!r})
    for number in (1, 2):
      step.assign(number)
      saver.save()
      assert saver.holds(number)
    if me == 0:
      with open(saver.checkpoints[-1] + '.index', 'ab') as f:
        f.write(b'!')
    workers.from_chief('damaged', lambda: None)
    step, reader = manager({str(tmp_path / 'shared')!r})
    print('restored', os.path.basename(reader.restore_or_initialize()), int(step.numpy()), flush=True)

    # A separate folder is noticed, here and there.
    _, reader = manager({str(tmp_path)!r} + ('/shared' if me == 0 else '/mine'))
    began = time.monotonic()
    try:
      with workers.guarded():
        reader.restore_or_initialize()
        workers.from_chief('go on', lambda: None) if me else workers._get('what nobody sets')
    except (errors.CheckpointError, errors.WorkerError) as error:
      report(error)
    print('bounded', time.monotonic() - began < 15)
  """)
  assert (first, second) == (0, 0), (err, other_err)
  for text in (out, other_out):
    assert "value {'worker': 0} 2" in text
    legend = (
      r'UserError: params: not the same on all workers, worker 0 \(127.0.0.1:\d+\) -> worker 1 \(127.0.0.1:\d+\): '
    )
    assert re.search(legend + 'steps 0 -> steps 1; start all workers with the same', text)
    assert 'restored ckpt-1 1' in text and 'bounded True' in text
  assert 'is set aside as' in err and 'set aside' not in other_err
  assert 'CheckpointError: ' in other_out and 'worker 0 restores this checkpoint, and it is not here' in other_out
  assert 'WorkerError: worker 1 (127.0.0.1:' in out and 'has stopped: CheckpointError: ' in out


@pytest.mark.slow
def test_outputs_of_all_workers_are_gathered(run_two):
  results = run_two("""
    import collections
    import numpy as np
    strategy = start()
    Pair = collections.namedtuple('Pair', 'labels outputs')
    rows = 3 - 3 * me  # The second worker has no rows.
    outputs = {
        'rows': (tf.reshape(tf.range(2 * rows) + 10 * me, [rows, 2]),),
        'pair': Pair({'texts': (tf.constant([f'w{me}', 'Ω'][: 1 + me]),)}, [(tf.constant(me, tf.bfloat16),)]),
        'ragged': (tf.ragged.constant([[1.0] * me, [2.0]]),),
        'sparse': (tf.sparse.from_dense([[me, 5]]),),
        'same': tf.constant(7.0),
        'absent': None,
        'flag': (tf.constant([me == 0] * (1 + me)),),
    }
    found, sent = lib.gather(strategy, outputs)
    print('kept', found['same'].numpy(), found['absent'], type(found['pair']).__name__, 'sent', sent)
    for name in ('rows', 'flag'):
      print(name, [value.numpy().tolist() for value in found[name]])
    print('texts', [[text.decode() for text in value.numpy()] for value in found['pair'].labels['texts']])
    print('half', [value.dtype.name + str(float(value)) for value in found['pair'].outputs[0]])
    print('ragged', [value.to_list() for value in found['ragged']])
    print('sparse', [tf.sparse.to_dense(value).numpy().tolist() for value in found['sparse']])
    for wrong in ({'own': tf.constant(me)}, {'object': (object(),)}):
      try:
        lib.gather(strategy, wrong)
      except errors.UserError as error:
        report(error)
    if me == 0:  # Its end would close the connection in which the other still receives.
      import time
      time.sleep(3)
  """)
  for status, out, err in results:
    assert status == 0, err
    lines = out.splitlines()
    for line in (
      'rows [[[0, 1], [2, 3], [4, 5]], []]',
      'flag [[True], [False, False]]',
      "texts [['w0'], ['w1', 'Ω']]",
      "half ['bfloat160.0', 'bfloat161.0']",
      'ragged [[[], [2.0]], [[1.0], [2.0]]]',
      'sparse [[[0, 5]], [[1, 5]]]',
    ):
      assert line in lines, out
    assert re.search(r'kept 7.0 None Pair sent [1-9]', out)
    assert 'UserError: next_eval_inputs: a log that is a single tensor differs between the workers' in out
    assert 'UserError: validation_step: a value of type object cannot be sent to the other workers' in out


def test_a_worker_that_waits_for_the_chief_notices_its_end(run_two):
  (first, _, _), (second, out, _) = run_two("""
    start()
    if me == 0:
      os.kill(os.getpid(), signal.SIGKILL)
    try:
      with workers.guarded():
        workers.from_chief('never', lambda: None)
    except errors.WorkerError as error:
      report(error)
  """)
  assert first == -9 and second == 0
  assert 'WorkerLostError: worker 0 (127.0.0.1:' in out and 'was lost' in out


@pytest.mark.slow
@pytest.mark.parametrize('lost', [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_worker_lost_while_tensorflow_connects_ends_the_other(run_two, lost):
  began = time.monotonic()
  statuses = run_two(f"""
    runtime = cfg.RuntimeConfig(worker_start_timeout_seconds=60, worker_timeout_seconds=5)
    lib._CONNECT_SECONDS = 2
    if me == {lost}:
      cluster.meet(cluster.find(), 60)
      os._exit(9)
    try:
      start()
    except errors.WorkerError as error:
      report(error)
      sys.exit(1)
  """)
  assert statuses[lost][0] == 9 and statuses[1 - lost][0] == 1, statuses
  assert time.monotonic() - began < 60


def test_workers_may_differ_in_what_changes_no_result(run_two, tmp_path):
  processes = run_two(f"""
    start()
    from official_ext.training.loop import run_checks
    same = dict(tensorflow='2.19.0', numpy=None)
    versions = dict(same, python=('3.11.4', '3.11.9')[me])
    code = {{'own/task.py': 'aa', 'own/_kernels.so': ('b0', 'b1')[me]}}
    run_checks.check_same_on_workers(workers, dict(), versions, code, dict())
    print('accepted', flush=True)
    for versions, code in (
      (dict(same, python=('3.11.4', '3.12.4')[me]), dict()),
      (dict(same, python='3.11.4', jinja2=('3.0', '3.1')[me]), dict()),
      (dict(same, python='3.11.4'), {{'own/task.py': ('aa', 'bb')[me]}}),
    ):
      try:
        run_checks.check_same_on_workers(workers, dict(), versions, code, dict())
      except errors.UserError as error:
        report(error)
    if me == 1:
      open({str(tmp_path / 'done')!r}, 'w').close()
    while not os.path.exists({str(tmp_path / 'done')!r}):  # The chief serves the others until they have read all.
      time.sleep(0.05)
  """)
  for status, out, err in processes:
    assert status == 0, err
    printed = [line for line in out.splitlines() if not line.startswith('Waiting for ')]
    assert printed[0] == 'accepted' and len(printed) == 4, out
    for line, expected in zip(printed[1:], ('python: 3.11 -> 3.12', 'jinja2: 3.0 -> 3.1', 'own/task.py: aa -> bb')):
      assert line.startswith('UserError: ') and expected in line
