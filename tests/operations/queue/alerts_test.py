"""Alerts, sent to an HTTP receiver on this machine by real dispatchers, which are killed."""

import collections
import dataclasses
import datetime
import http.server
import json
import os
import pathlib
import random
import signal
import stat
import sys
import threading
import time

import pytest

from official_ext.base import errors
from official_ext.base.processes import process_identity
from official_ext.cli import main
from official_ext.operations.queue import alert_files
from official_ext.operations.queue import alert_rules
from official_ext.operations.queue import alerts
from official_ext.operations.queue import event_watch
from official_ext.operations.queue import incidents
from official_ext.operations.runs import index
from tests.operations.queue import queues
from tests.operations.runs import folders


class Receiver:
  """A server that gets reports.

  Attributes:
    titles: of the messages that it has accepted, without the name of this machine.
    tries: how many messages came.
    delay: how long it takes over each, in seconds.
    status: of its answers.
    url: its address for apprise.
  """

  def __init__(self):
    self.titles, self.bodies, self.tries, self.delay, self.status = [], [], 0, 0.0, 200
    receiver = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        receiver.tries += 1
        time.sleep(receiver.delay)
        if receiver.status == 200:
          who, _, what = message['title'].partition(' on ')
          lines = message['message'].splitlines() if message['title'].endswith('alerts') else []
          several = [line for line in lines if not line.startswith(' ')]
          for title in several or [f'{who} on {what}']:
            name, _, rest = title.partition(' on ')
            receiver.titles.append(f'{name}: {rest.partition(": ")[2]}')
          receiver.bodies.append(message['message'])
        try:
          self.send_response(receiver.status)
          self.end_headers()
        except OSError:
          pass

      def log_message(self, *args):
        pass

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True
    self.url = f'json://user:secret@127.0.0.1:{self._server.server_port}/hook'
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def close(self):
    self._server.shutdown()
    self._server.server_close()


@pytest.fixture
def receiver():
  made = Receiver()
  yield made
  made.close()


@pytest.fixture
def trial(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  made = queues.Trial(tmp_path / 'runs', tmp_path)
  yield made
  made.close()


def told(*receivers, on=()):
  return {'receivers': {f'env:R{number}': each.url for number, each in enumerate(receivers)}, 'on': list(on)}


def watching(trial, *receivers, on=(), hung_seconds=1800.0):
  """The watch of `trial` in this process, for tests that look at the files of runs."""
  named = {f'env:R{number}': each.url for number, each in enumerate(receivers)}
  return alerts.Alerts(trial.queue, alert_rules.parse(on, hung_seconds), named, poll_seconds=0.05, delays=(0.1,))


def tell(trial, *receivers, **options):
  """Looks once, sends the due alerts, and returns the output."""
  lines = []
  one = watching(trial, *receivers, **options)
  one.start(lines.append)
  one.finish()
  return lines


def check_kills(trial, receiver, jobs, kills, seed):
  """Kills dispatchers at any moment while jobs end and are reported; each job is reported once, and the empty queue."""
  draw = random.Random(seed)
  asked = told(receiver, on=['finished', 'failed', 'queue_empty'])
  for number in range(jobs):
    trial.add('exit 2' if number % 3 == 0 else '', seconds=0.05)
  for _ in range(kills):
    process = trial.dispatch(slots=2, told=asked)
    time.sleep(draw.uniform(0.0, 0.7))
    process.kill()
  trial.finish(slots=2, told=asked)
  expected = [f'job {number + 1}: {"failed" if number % 3 == 0 else "finished"}' for number in range(jobs)]
  assert collections.Counter(receiver.titles) == collections.Counter([*expected, 'queue: empty'])
  return receiver.tries


@pytest.mark.slow
def test_killed_6_times_it_tells_each_thing_once(trial, receiver):
  check_kills(trial, receiver, jobs=9, kills=6, seed=1)


@pytest.mark.soak
def test_killed_50_times_it_tells_each_thing_once(trial, receiver):
  messages = check_kills(trial, receiver, jobs=120, kills=50, seed=2)
  print(f'50 kills: 120 jobs told in {messages} messages')


@pytest.mark.soak
def test_senders_that_are_killed_too_tell_nothing_twice(trial, receiver):
  draw = random.Random(3)
  asked = told(receiver, on=['finished'])
  trial.finish(told=asked)
  kills = 0
  for number in range(60):
    trial.add()
    process = trial.dispatch(told=asked)
    queues.until(lambda number=number: trial.statuses()[number + 1] == 'finished')
    time.sleep(draw.uniform(0.0, 1.2))
    process.kill()
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
      if _is_sender(pid, trial.folder):
        os.kill(pid, signal.SIGKILL)
        kills += 1
  output = trial.finish(told=asked)
  assert max(collections.Counter(receiver.titles).values()) == 1
  lost = 60 - len(receiver.titles)
  print(f'{kills} senders killed, {lost} of 60 alerts lost')
  assert lost <= kills and (lost == 0 or 'may not have reached' in output or lost < 60)


@pytest.mark.soak
def test_killed_between_any_two_of_its_steps_it_tells_each_thing_once(trial, receiver):
  asked = told(receiver, on=['finished'])
  trial.finish(told=asked)
  dies_at = number = 0
  while True:
    dies_at += 1
    number = trial.add()
    process = trial.dispatch(dies_at=dies_at, told=asked)
    process.wait()
    if process.poll() == 0:
      break
  trial.finish(told=asked)
  assert collections.Counter(receiver.titles) == collections.Counter(f'job {n + 1}: finished' for n in range(number))
  print(f'killed before each of {dies_at} steps')


def test_the_end_of_runs_is_told_but_not_what_was_before(trial, receiver):
  gone = folders.ended_process()
  folders.make(trial.folder, 'before', identity=gone, status='finished')
  live = folders.make(trial.folder, 'live', events=[folders.event('train', 10, training_loss=0.25)])
  assert tell(trial, receiver) == []
  assert receiver.titles == []
  # Now nobody watches.
  folders.make(trial.folder, 'live', live and [], identity=gone)
  (pathlib.Path(live.path) / 'events.jsonl').write_text(
    json.dumps(folders.event('train', 12, training_loss=0.25)) + '\n'
  )
  for name, status, more in (
    ('good', 'finished', {'step': 100}),
    ('bad', 'failed', {'error': 'ValueError: token=abcdefgh'}),
    ('odd', 'diverged', {}),
    ('stuck', 'hung', {}),
    ('stopped', 'preempted', {}),
    ('another/good', 'finished', {'step': 100}),
  ):
    folders.make(trial.folder, name, identity=folders.ended_process(len(name)), status=status, **more)
  for _ in range(2):  # The second dispatcher has no alerts.
    assert tell(trial, receiver) == []
    assert sorted(receiver.titles) == [
      'another/good: finished at step 100',
      'bad: failed at step 10',
      'good: finished at step 100',
      'live: killed at step 12',
      'odd: diverged at step 10',
      'stuck: hung at step 10',
    ]
  assert 'training_loss 0.25' in ''.join(receiver.bodies) or len(receiver.bodies) == 1
  assert 'abcdefgh' not in ''.join(receiver.bodies)


@pytest.mark.slow
def test_a_run_of_the_queue_is_told_as_a_run_alone_also_if_it_has_left_no_record(trial, receiver, tmp_path):
  (tmp_path / 'link').symlink_to(trial.folder)
  done = folders.make(tmp_path, 'done', identity=folders.ended_process(), status='finished', step=7)
  for number in range(4):
    trial.add('exit 2', model_dir=str(tmp_path / 'link' / f'bad{number}'))
    good = trial.folder / f'good{number}'
    trial.add(f'cp {done.file("run.json")} {good}/', model_dir=str(good))
  linked = queues.Trial(tmp_path / 'link', tmp_path / 'runs')
  linked.finish(slots=2, told=told(receiver, on=['finished', 'failed', 'killed']))
  assert sorted(receiver.titles) == sorted(
    [f'bad{n}: failed' for n in range(4)] + [f'good{n}: finished at step 7' for n in range(4)]
  )


def test_a_run_that_hangs_is_told_while_it_does(trial, receiver):
  updated = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() - 245))
  run = folders.make(trial.folder, 'a', updated=updated)
  assert tell(trial, receiver, hung_seconds=300.0) == [] and receiver.titles == []
  tell(trial, receiver, hung_seconds=200.0)
  tell(trial, receiver, hung_seconds=200.0)
  assert receiver.titles == ['a: hung at step 10']
  assert receiver.bodies[0].splitlines() == ['no step for 4 min, in stage train', run.path]


@pytest.mark.slow
def test_metrics_are_told_once_a_run_by_every_event_also_of_one_that_was_overwritten(trial, receiver):
  def write(name, *events):
    with open(trial.folder / name / 'events.jsonl', 'a') as file:
      file.writelines(json.dumps(event) + '\n' for event in events)

  on = ['validation_accuracy>0.9', 'training_loss>10', 'nan']
  over = folders.make(trial.folder, 'over', identity=folders.ended_process(), status='finished')
  write('over', folders.event('train', 1, training_loss=99.0))
  folders.make(trial.folder, 'a')
  write('a', folders.event('start', 0), folders.event('train', 1, training_loss=9.0, accuracy=0.95))
  tell(trial, receiver, on=on)
  assert receiver.titles == []  # The first was over; the accuracy of the other is that of training.
  write('a', folders.event('train', 2, training_loss=11.0), folders.event('train', 3, training_loss=1.0))
  write('a', folders.event('restored', 1), folders.event('train', 2, training_loss=12.0))
  write('a', folders.event('eval', 2, accuracy=0.91), folders.event('train', 3, training_loss='NaN'))
  write('a', folders.event('train', 4, training_loss='NaN'))
  tell(trial, receiver, on=on)
  expected = ['a: nan at step 3', 'a: training_loss>10 at step 2', 'a: validation_accuracy>0.9 at step 2']
  assert sorted(receiver.titles) == expected
  assert any('training_loss is 11' in body for body in receiver.bodies)
  tell(trial, receiver, on=on)
  # An ended run continues, and reaches its limit; one that is begun anew in the folder is another run.
  write('over', folders.event('train', 2, training_loss=98.0))
  os.unlink(trial.folder / 'a' / 'events.jsonl')
  write('a', {**folders.event('start', 0), 'time': 5.0}, folders.event('train', 7, training_loss=20.0))
  tell(trial, receiver, on=on)
  assert sorted(receiver.titles) == sorted(
    [*expected, 'over: training_loss>10 at step 2', 'a: training_loss>10 at step 7']
  )
  del over


@pytest.mark.slow
def test_a_receiver_that_hangs_delays_no_job(trial, receiver):
  receiver.delay = 30.0

  def seconds_of_jobs(**options):
    begun = time.monotonic()
    numbers = [trial.add() for _ in range(5)]
    process = trial.dispatch(**options)
    queues.until(lambda: all(trial.statuses()[number] == 'finished' for number in numbers))
    return time.monotonic() - begun, process

  trial.add()
  _, process = seconds_of_jobs(told=told(receiver))
  queues.until(lambda: receiver.tries)
  process.kill()
  hanging, process = seconds_of_jobs(told=told(receiver))
  assert receiver.tries == 1 and receiver.titles == []  # It hangs all the time.
  process.kill()
  plain, process = seconds_of_jobs()
  process.kill()
  print(f'5 jobs: {hanging:.2f} s with a receiver that hangs, {plain:.2f} s without alerts')
  assert hanging < plain + 10.0


@pytest.mark.slow
def test_a_receiver_that_refuses_is_tried_so_often_and_delays_no_other(trial, receiver):
  other = Receiver()
  receiver.status = 500
  for _ in range(2):
    trial.add()
  output = trial.finish(told=told(receiver, other, on=['finished']))
  lines = [line for line in output.splitlines() if 'alerts' in line]
  assert len(lines) == 1 and lines[0].endswith(": finished' was not taken by env:R0")
  assert other.titles == ['job 1: finished', 'job 2: finished'] and receiver.titles == []
  assert receiver.tries == 6  # Three times each.
  receiver.status = 200
  trial.add()
  trial.finish(told=told(receiver, other, on=['finished']))
  assert receiver.titles == ['job 3: finished'] and len(other.titles) == 3
  other.close()
  written = [path for path in trial.folder.rglob('*') if path.is_file()]
  assert len(written) > 6 and not any(b'secret' in path.read_bytes() for path in written)
  assert 'secret' not in output


def test_a_sender_that_is_killed_while_it_sends_does_not_send_again(trial, receiver):
  receiver.delay = 2.0
  trial.add()
  process = trial.dispatch(told=told(receiver, on=['finished']))
  queues.until(lambda: receiver.tries)
  process.kill()
  (sender,) = [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if _is_sender(pid, trial.folder)]
  os.kill(sender, signal.SIGKILL)
  output = trial.finish(told=told(receiver, on=['finished']))
  assert output.splitlines()[-1].endswith(": finished' may not have reached env:R0")
  assert receiver.tries == 1


def _is_sender(pid, folder):
  try:
    command = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
  except OSError:
    return False
  return b'alert_sender' in command and bytes(folder) in command


@pytest.mark.slow
def test_what_a_run_tells_by_itself_is_not_told_again(trial, receiver):
  other = Receiver()
  tell(trial, receiver, other)
  run = folders.make(trial.folder, 'a', identity=folders.ended_process(), status='failed')
  with open(run.file('params.yaml'), 'a') as file:
    file.write('  notifications:\n    urls: ["env:R0"]\n    events: [start, failed]\n')
  tell(trial, receiver, other)
  assert receiver.titles == [] and other.titles == ['a: failed at step 10']
  other.close()


def test_many_things_at_once_are_one_message(trial, receiver):
  tell(trial, receiver)
  for number in range(8):
    folders.make(trial.folder, f'run{number}', identity=folders.ended_process(number), status='finished')
  tell(trial, receiver)
  assert len(receiver.bodies) == 1
  assert sorted(receiver.titles) == [f'run{number}: finished at step 10' for number in range(8)]


def test_rules_and_receivers_that_make_no_sense_are_told_in_a_line(trial, tmp_path, monkeypatch, capfd):
  monkeypatch.setenv('GOOD', 'json://localhost')
  monkeypatch.setenv('BAD', 'nothing://of-the-kind')
  monkeypatch.delenv('OFFICIAL_EXT_ALERTS', raising=False)
  secret = tmp_path / 'urls'
  secret.write_text('json://user:secret@localhost')
  secret.chmod(0o644)
  for flags, message in (
    (['--alert=json://user:secret@host'], '--alert: expected env:NAME, the name of an environment variable'),
    (['--alert=env:NONE'], '--alert: env:NONE: the environment variable NONE is not set'),
    (['--alert=env:BAD'], '--alert=env:BAD: apprise does not know the URL in it'),
    ([f'--alert=file:{secret}'], f'--alert: file:{secret}: others may read it; `chmod 600` it'),
    (['--alert_on=finished'], '--alert_on: there are no receivers; name one'),
    (['--alert=env:GOOD', '--alert_on=finishd'], '--alert_on=finishd: expected a condition'),
    (['--alert=env:GOOD', '--alert_on=loss>x'], '--alert_on=loss>x: metrics are numbers'),
  ):
    assert main.main(['queue', 'run', str(trial.folder), '--until_empty', *flags]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f'error: {message}') and error.count('\n') == 1 and 'user:secret' not in error, error
  secret.chmod(0o600)
  assert main.main(['queue', 'run', str(trial.folder), '--until_empty', f'--alert=file:{secret}']) == 0
  assert stat.S_IMODE(os.stat(trial.queue.folder).st_mode) == 0o700


def test_rules():
  rules = alert_rules.parse(['loss>10'])
  assert rules.kinds == alert_rules.KINDS  # Beside a condition everything else is reported too.
  assert alert_rules.parse(['failed', 'loss>10']).kinds == ('failed',)
  event = folders.event('eval', 3, validation_loss=20.0, loss='Infinity')
  assert rules.found_in(event) == [('nan', 'loss is inf'), ('loss>10', 'loss is inf')]
  assert alert_rules.parse(['validation_loss>10']).found_in(event)[1] == ('validation_loss>10', 'validation_loss is 20')
  with pytest.raises(errors.UserError):
    alert_rules.parse(['loss~1'])


def test_an_alert_that_is_damaged_stops_nothing(trial, receiver):
  tell(trial, receiver)
  files = alert_files.AlertFiles(trial.queue.folder)
  pathlib.Path(files.folder, f'{alert_files.key_of("x")}.json').write_text('{')
  folders.make(trial.folder, 'a', identity=folders.ended_process(), status='failed')
  assert tell(trial, receiver) == [] and receiver.titles == ['a: failed at step 10']


def test_nothing_of_it_imports_tensorflow():
  assert alerts.__name__ in sys.modules
  code = (
    'import official_ext.operations.queue.alerts, official_ext.cli.queue, sys; sys.exit("tensorflow" in sys.modules)'
  )
  assert os.system(f"{sys.executable} -c '{code}'") == 0


def test_a_queue_to_which_a_sweep_will_add_more_is_not_empty(trial, receiver):
  trial.add()
  tell(trial, receiver, on=['queue_empty'])
  trial.finish()
  with trial.queue.expecting_more('a sweep'):
    tell(trial, receiver, on=['queue_empty'])
    assert receiver.titles == []
  tell(trial, receiver, on=['queue_empty'])
  assert receiver.titles == ['queue: empty']


def test_a_run_on_a_host_whose_clock_is_an_hour_behind_is_not_told_as_killed_while_its_heart_beats(tmp_path):
  # The visible heartbeat is an hour old; only its change counts.
  far = dataclasses.replace(process_identity.own(), host='far', boot_id='another', machine_id='another')

  def beat(seconds):
    return datetime.datetime.fromtimestamp(time.time() - 3600 + seconds, datetime.UTC).isoformat()

  rules = alert_rules.parse(['killed'])
  found = incidents.Incidents(rules, event_watch.EventWatch({}, only_odd=True), silence_seconds=0.3)

  def killed():
    runs = index.RunIndex(str(tmp_path / 'runs')).summaries()
    return [incident.what for incident in found.find(runs, [], lambda key: False)]

  for seconds in range(4):
    folders.make(tmp_path / 'runs', 'a', identity=far, heartbeat=beat(seconds))
    assert killed() == []
    time.sleep(0.2)
  time.sleep(0.2)
  assert killed() == ['killed at step 10']


@pytest.mark.parametrize(('hours', 'num_known'), [(1, 0), (48, 1)])
def test_a_run_on_a_host_whose_clock_is_behind_has_not_ended_before_a_rule_was_asked_for(trial, hours, num_known):
  # Before: it counted as killed already, and its real end was not reported.
  far = dataclasses.replace(process_identity.own(), host='far', boot_id='another', machine_id='another')
  beat = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)
  folders.make(trial.queue.runs_dir, 'a', identity=far, heartbeat=beat.isoformat())
  tell(trial, on=['killed'])
  assert len(alert_files.AlertFiles(trial.queue.folder).known_before('killed')) == num_known


def test_while_its_thread_hangs_with_the_disk_nothing_else_looks(trial, receiver, monkeypatch):
  # Before: the end looked beside the thread, with the same objects.
  monkeypatch.setattr(alerts, '_JOIN_SECONDS', 0.1)
  one = watching(trial, receiver)
  one.start(print)
  hangs, goes_on, looking = threading.Event(), threading.Event(), []

  def hang(*unused):
    looking.append(threading.current_thread().name)
    hangs.set()
    goes_on.wait(60)
    return []

  monkeypatch.setattr(one._index, 'summaries', hang)
  assert hangs.wait(60)
  one.finish()
  goes_on.set()
  assert looking == ['alerts'] and one.close()
