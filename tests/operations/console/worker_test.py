"""The process with the driver's answers, as the console holds it."""

import os
import signal
import textwrap
import threading
import time

import pytest

from official_ext.base import processes
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import new_runs
from tests import driver_processes

_FLAGS = ('--experiment=digits', '--mode=train')


def _lines(found):
  return [(line['field'], line['text']) for line in found['lines']]


def _flags(folder, *sets, experiment='digits'):
  return [f'--experiment={experiment}', '--mode=train', f'--model_dir={folder}', *(f'--set={text}' for text in sets)]


@pytest.fixture
def own(train_server, tmp_path):
  """`own(module's code)` is a driver with a custom registry, the module my_tasks in `tmp_path`."""
  made = []

  def make(code):
    (tmp_path / 'train.py').write_text('')
    (tmp_path / 'registry_imports.py').write_text('')
    (tmp_path / 'my_tasks.py').write_text(textwrap.dedent(code))
    made.append(driver_processes.ForkedDriver(train_server(), cwd=str(tmp_path), registry=('my_tasks',)))
    return made[-1]

  yield make
  for each in made:
    each.close()


_REGISTRY = """
  import os, time
  import official_ext as ext
  from official.core import config_definitions as cfg

  @ext.register_experiment('own')
  def own():
    '''My own.

    Command: python train.py --experiment=own
    Time: a second.
    '''
    made.append(1)
    if os.path.exists('hangs'): time.sleep(600)
    return ext.ExperimentConfig(task=ext.TaskConfig(), trainer=ext.TrainerConfig(train_steps={steps} * len(made)))

  made = []
"""


def test_experiments_come_with_their_descriptions(driver):
  found = driver.experiments()
  digits = next(each for each in found['experiments'] if each['name'] == 'digits')
  assert digits['parts']['Command'].startswith('python train.py --experiment=digits --mode=')
  assert {'Hardware and time', 'Result'} <= digits['parts'].keys()
  assert found['lines'] == []


def test_fields_have_what_describe_prints(driver, tmp_path):
  found = driver.check(_flags(tmp_path / 'run', 'schedule=constant', 'train_steps=7'), fields=True)
  fields = {field['path']: field for field in found['fields']}
  steps = fields['trainer.train_steps']
  assert (steps['key'], steps['kind'], steps['default']) == ('train_steps', 'int', '600')
  assert (steps['range'], found['values']['trainer.train_steps']) == ('at least 0', '7')
  schedule = fields['trainer.optimizer_config.learning_rate.type']
  assert (schedule['kind'], schedule['default']) == ('choice', 'cosine')
  assert 'constant' in schedule['choices']
  assert fields['trainer.optimizer_config.learning_rate.constant.learning_rate']['key'] == 'learning_rate'
  assert fields['runtime.enable_xla']['choices'] == ['true', 'false', 'auto']
  assert fields['task.name']['nullable'] and fields['task.name']['kind'] == 'string'
  assert fields['trainer.notifications.urls']['is_secret']
  assert all(field['meaning'] for field in found['fields'] if field['path'].startswith('trainer.nonfinite'))
  sft = driver.check(_flags(tmp_path / 'run', experiment='sft'), fields=True, quick=True)
  also = {field['key']: field['also'] for field in sft['fields']}
  assert any(also.values())  # A short name that sets several fields reports that.


def test_mistakes_are_assigned_to_their_fields(driver, tmp_path):
  sets = ('train_steps=x', 'task.foo=1', 'trainer.optimizer_config.learning_rate.constant.learning_rate=1', 'a')
  found = dict(_lines(driver.check(_flags(tmp_path / 'run', *sets, 'task.model.filters=[1, a]'))))
  assert found['trainer.train_steps'] == "trainer.train_steps: expected int, got 'x' (str)"
  assert found['task.foo'].startswith('task.foo: no such field')
  assert found['a'] == '--set=a: expected --set=NAME=VALUE'
  assert found['task.model.filters'].startswith('task.model.filters.1: ')
  constant = found['trainer.optimizer_config.learning_rate.constant.learning_rate']
  assert constant.startswith('trainer.optimizer_config.learning_rate.constant: nothing reads this field while')
  assert not (tmp_path / 'run').exists()


def test_devices_and_files_are_checked_too(driver, tmp_path):
  assert _lines(driver.check(_flags(tmp_path / 'run', 'num_gpus=7'))) == [
    ('runtime.num_gpus', 'runtime.num_gpus: requested 7, found 0; 0 takes all')
  ]
  (tmp_path / 'file').write_text('')
  ((field, line),) = _lines(driver.check(_flags(tmp_path / 'file')))
  assert field == '--model_dir'
  assert line.startswith(f'--model_dir={tmp_path}/file: ')
  (tmp_path / 'taken' / 'params.yaml').mkdir(parents=True)
  ((field, line),) = _lines(driver.check(_flags(tmp_path / 'taken')))
  assert (field, 'is a folder, and a run keeps a file there' in line) == ('--model_dir', True)


@pytest.mark.slow
def test_nothing_of_a_request_is_left_for_the_next(own, tmp_path):
  with own(_REGISTRY.format(steps=5)) as driver:
    flags = _flags(tmp_path / 'run', experiment='own')
    for _ in range(2):  # Its factory makes another configuration at its second call.
      bad = driver.check([*flags, '--gin_params=no_such.thing = 1', '--set=train_steps=1'], quick=True)
      assert [field for field, _ in _lines(bad)] == ['--gin_file']
      found = driver.check(flags, quick=True)
      assert (_lines(found), found['values']['trainer.train_steps']) == ([], '5')
    assert driver.launched == 1
    found = driver.experiments()
    (own_one,) = (each for each in found['experiments'] if each['name'] == 'own')
    assert own_one['parts'] == {'Command': 'python train.py --experiment=own', 'Time': 'a second.'}


def test_a_changed_module_is_read_again_and_a_broken_one_reported(own, tmp_path):
  with own(_REGISTRY.format(steps=5)) as driver:
    wanted = new_runs.NewRun(str(tmp_path), 'mine', 'own', registry=('my_tasks',), sets=('train_steps=x',))
    assert _lines(wanted.check(driver)) == [('trainer.train_steps', "trainer.train_steps: expected int, got 'x' (str)")]
    assert '--registry=my_tasks' in wanted.shell_lines(driver)
    assert 'own' in [each['name'] for each in driver.experiments()['experiments']]
    pid = driver.pid
    (tmp_path / 'my_tasks.py').write_text("import official_ext\n\nraise KeyError('lost')\n")
    line = f"--registry=my_tasks: cannot be imported: KeyError: 'lost' ({tmp_path}/my_tasks.py, line 3)"
    found = driver.check([*_flags(tmp_path / 'run', experiment='own'), '--registry=my_tasks'])
    assert _lines(found) == [('--registry', line)]
    assert driver.pid != pid
    assert driver.experiments()['lines'] == [line]


@pytest.mark.slow
def test_a_hanging_request_ends_and_a_dead_process_comes_back(own, tmp_path, monkeypatch):
  monkeypatch.setattr(driver_lib, '_ANSWER_SECONDS', 1.0)
  with own(_REGISTRY.format(steps=5)) as driver:
    driver.experiments()
    (tmp_path / 'hangs').write_text('')
    with pytest.raises(driver_lib.DriverError, match='no answer in 1 s'):
      driver.check(_flags(tmp_path / 'run', experiment='own'))
    assert driver.is_ready
    (tmp_path / 'hangs').unlink()
    os.kill(driver.pid, signal.SIGKILL)
    while driver.is_ready:
      time.sleep(0.01)
    assert driver.experiments()['experiments']
    assert driver.launched == 2


def test_it_ends_with_whoever_holds_its_pipe(own):
  driver = own(_REGISTRY.format(steps=5))
  driver.experiments()
  identity, start = driver.pid, processes.start_of(driver.pid)
  driver._process.stdin.close()  # As when the server is killed.
  deadline = time.monotonic() + 120
  while processes.start_of(identity) == start:
    assert time.monotonic() < deadline
    time.sleep(0.02)


def test_threads_are_answered_one_after_the_other(driver, tmp_path):
  found = {}

  def ask(steps):
    found[steps] = driver.check(_flags(tmp_path / 'run', f'train_steps={steps}'), quick=True)

  threads = [threading.Thread(target=ask, args=(steps,)) for steps in range(1, 5)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert all(each['values']['trainer.train_steps'] == str(steps) for steps, each in found.items())
  assert len(found) == 4
