"""The console's models: lists, exports, and answers. Models are real, and in separate processes."""

import base64
import http.client
import json
import os
import signal
import struct
import time
import zlib

import pytest

from official_ext.operations.console import models_api
from official_ext.operations.runs import run_processes
from tests import train_processes
from tests.operations.console import models
from tests.operations.runs import folders

SAVED = {'run': 'digits', 'result': 'export/100'}
WRITER = {'run': 'writer', 'result': 'model'}


@pytest.fixture(scope='module')
def root(tmp_path_factory, train_server):
  made = tmp_path_factory.mktemp('models') / 'runs'
  models.make(made, train_server(), tmp_path_factory.mktemp('script'))
  return made


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


def stream(console, stop_after=None, kill_after=(), **body):
  """The lines of an answer, each with the time at which it came; after so many it is stopped, or a process killed."""
  headers = {'Content-Type': 'application/json', 'Origin': console.url, 'X-Console-Token': console.context.token}
  connection = http.client.HTTPConnection('127.0.0.1', console.context.port, timeout=120)
  connection.request('POST', '/api/models/chat', json.dumps(body), headers)
  answer, found = connection.getresponse(), []
  assert answer.status == 200, answer.read()
  while line := answer.readline():
    found.append((time.monotonic(), json.loads(line)))
    if len(found) == stop_after:
      break
    if len(found) in kill_after[:1]:
      os.kill(kill_after[1], signal.SIGKILL)
  answer.close()
  connection.close()
  return found


def text_of(lines):
  return ''.join(values.get('text', '') for _, values in lines)


def png(rows):
  """A grey picture."""

  def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

  header = struct.pack('>IIBBBBB', len(rows[0]), len(rows), 8, 0, 0, 0, 0)
  pixels = zlib.compress(b''.join(b'\0' + bytes(row) for row in rows))
  return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')


@pytest.mark.slow
def test_what_runs_have_left_is_listed(console, root):
  found = {run['name']: run for run in console.get('/api/models')['runs']}
  assert set(found) == {'digits', 'writer', 'other', 'tuned'}  # Not the one that has left nothing.
  (result,) = found['digits']['results']
  assert (result['kind'], result['name'], result['command']) == (
    *('saved_model', 'export/100'),
    f'official-ext predict {root}/digits/export/100',
  )
  assert found['digits']['has_checkpoint'] and found['digits']['metrics'] == {'accuracy': 0.5}
  (result,) = found['writer']['results']
  assert result['kind'] == 'hugging_face' and result['command'] == f'official-ext chat {root}/writer/model'
  assert not found['writer']['has_checkpoint']


@pytest.mark.slow
def test_a_saved_model_takes_values_and_pictures(console):
  (signature,) = console.post('/api/models/open', **SAVED)['signatures'].values()
  assert signature['inputs'] == [{'name': 'pixels', 'dtype': 'float32', 'shape': [None, 64]}]

  def predict(**given):
    found = console.post('/api/models/predict', **SAVED, signature='serving_default', inputs={'pixels': given})
    return found['outputs']['logits']['values']

  pixels = [float(place) for place in range(64)]
  expected = [sum(place for place in range(64) if place % 10 == column) for column in range(10)]
  assert predict(text=json.dumps(pixels)) == [expected]  # Without the dimension of the batch.
  assert predict(text=json.dumps([pixels, [0] * 64])) == [expected, [0.0] * 10]
  picture = base64.b64encode(png([[row * 8 + column for column in range(8)] for row in range(8)])).decode()
  assert predict(image=picture) == [pytest.approx(expected, abs=1e-3)]
  assert predict(image=picture, range='0..1') == [pytest.approx([value / 255 for value in expected], abs=1e-5)]


@pytest.mark.slow
def test_mistakes_are_reported_at_their_field(console):
  for given, line in (
    ({}, 'inputs.pixels: is missing: float32 (None, 64)'),
    ({'text': '[1, 2'}, 'inputs.pixels: is invalid JSON: '),
    ({'text': '[[1], [2, 3]]'}, 'inputs.pixels: its lists have different lengths'),
    ({'text': '[1, 2]'}, 'inputs.pixels: has the shape (1, 2), expected (None, 64)'),
    ({'text': '["<b>"]'}, 'inputs.pixels: holds something else than numbers'),
    ({'image': 'bm90'}, 'inputs.pixels: the file is not a PNG, JPEG, WebP, GIF or BMP'),
  ):
    status, found = console.try_post(
      '/api/models/predict', **SAVED, signature='serving_default', inputs={'pixels': given}
    )
    assert status == 400 and len(found['errors']) == 1 and found['errors'][0].startswith(line), found
  for values, line in (
    ({'settings': {'temperature': -1}}, '--temperature: -1.0 must be 0 (the likeliest token) or more'),
    ({'settings': {'top_k': 5}}, '--top_k: changes nothing at temperature 0, the likeliest token; add --temperature=1'),
    ({'settings': {'top_k': 1.5}}, '--top_k: expected a whole number'),
    ({'messages': [{'role': 'system', 'content': 'a'}]}, 'messages: expected role user or assistant'),
    ({'messages': [{'role': 'user', 'content': 'a' * 400}]}, 'the message: '),
  ):
    body = {**WRITER, 'messages': [{'role': 'user', 'content': 'hello'}], **values}
    status, found = console.try_post('/api/models/chat', **body)
    assert status == 400 and found['errors'][0].startswith(line), found


def test_what_is_no_result_of_a_run_is_refused(console, root, tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere' / 'saved_model.pb').write_bytes(b'')
  os.symlink(tmp_path / 'elsewhere', root / 'plain' / 'model')
  for values in (
    {'run': 'plain', 'result': 'model'},
    {'run': 'digits', 'result': '../digits/export/100'},
    {'run': 'digits', 'result': 'export'},
    {'run': '../runs/digits', 'result': 'export/100'},
    {'run': 'digits', 'result': '/etc'},
  ):
    assert console.try_post('/api/models/open', **values)[0] == 400
  assert console.request('GET', '/api/models/open')[0] in (404, 405)
  headers = {'Content-Type': 'application/json', 'Origin': 'http://elsewhere', 'X-Console-Token': console.context.token}
  assert console.request('POST', '/api/models/chat', '{}', headers)[0] == 403


@pytest.mark.slow
def test_chat_is_streamed_stopped_and_remembers(console):
  settings = {'max_new_tokens': 100}
  hello = [{'role': 'user', 'content': 'hello'}]
  stream(console, **WRITER, messages=hello, settings=settings)  # It compiles.
  lines = stream(console, **WRITER, messages=hello, settings=settings)
  assert lines[-1][1]['tokens'] == 100 and lines[-1][1]['ended_by'] == 'max_new_tokens'
  assert len(lines) > 50 and len({round(when, 3) for when, _ in lines}) > 10  # One after the other.
  begun = time.monotonic()
  stopped = stream(console, stop_after=3, **WRITER, messages=hello, settings=settings)
  assert text_of(lines).startswith(text_of(stopped)) and text_of(stopped)
  again = stream(console, **WRITER, messages=hello, settings=settings)  # Not refused as one that is busy.
  print(f'stopped and free again after {again[0][0] - begun:.2f} s')
  assert text_of(again) == text_of(lines)
  # An earlier message makes another prompt.
  more = [*hello, {'role': 'assistant', 'content': 'yes'}, {'role': 'user', 'content': 'hello'}]
  assert text_of(stream(console, **WRITER, messages=more, settings=settings)) != text_of(lines)
  continued = stream(console, **WRITER, prompt='hello', settings={'max_new_tokens': 5})
  assert continued[-1][1]['tokens'] == 5


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_answers_is_reported(console):
  asked = {**WRITER, 'messages': [{'role': 'user', 'content': 'hello'}], 'settings': {'max_new_tokens': 100}}
  stream(console, **asked)  # It starts.
  pid = next(
    int(pid) for pid in os.listdir('/proc') if pid.isdigit() and _holds(pid, str(console.context.root), 'writer')
  )
  lines = stream(console, kill_after=(3, pid), **asked)
  assert lines[-1][1]['errors'] == ['the process with the model was killed by SIGKILL, as when memory is short']


def _command(pid):
  """The command line of a process with a model; '' of others."""
  try:
    with open(f'/proc/{pid}/cmdline', 'rb') as file:
      command = file.read().decode(errors='replace')  # Any bytes, of any process.
  except OSError:
    return ''
  return command if 'model_server' in command else ''


def _holds(pid, *words):
  return bool(command := _command(pid)) and all(word in command for word in words)


def exported(console, **body):
  """How an export has ended."""
  found = console.post('/api/models/export', **body)
  deadline = time.monotonic() + 120
  while (state := console.get('/api/models/export', run=body['run'])['export'])['is_running']:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  return found['command'], state


@pytest.mark.slow
def test_an_export_is_a_command_of_its_own_with_its_log(console, root):
  status, found = console.try_post('/api/models/export', run='digits', to='tensorboard')
  assert status == 400 and found['errors'] == ['to: tensorboard: expected saved_model or hugging_face']
  bare = folders.make(root, 'bare', identity=folders.ended_process(), status='finished')
  os.unlink(bare.file('params.yaml'))
  command, state = exported(console, run='bare', to='hugging_face')
  assert command == f'official-ext convert {root}/bare {root}/bare/hugging_face' == state['command']
  assert state['exit_status'] == 2 and state['log'][-1].startswith(f'error: {root}/bare: holds no config.json')
  assert run_processes.START_LOCK in os.listdir(root / 'bare')
  os.mkdir(bare.file('hugging_face'))
  (root / 'bare' / 'hugging_face' / 'something').write_text('')
  status, found = console.try_post('/api/models/export', run='bare', to='hugging_face')
  assert status == 400 and 'exists already' in found['errors'][0]


@pytest.mark.slow
def test_adapters_answer_over_the_base_that_they_were_trained_on_or_another(console):
  (result,) = next(run for run in console.get('/api/models')['runs'] if run['name'] == 'tuned')['results']
  assert result['base_kept'] == 'nf4 weights (blocks of 64, other weights float32)' and result['has_base']
  tuned = {'run': 'tuned', 'result': 'adapter'}
  answers = {}
  for name, more in (('trained', {}), ('float', {'load_in_4bit': False})):
    base = console.post('/api/models/open', **tuned, **more)['base']
    assert base.startswith('float32 weights of ' if name == 'float' else 'nf4 weights (blocks of 64, other')
    settings = {'max_new_tokens': 20}
    answers[name] = text_of(stream(console, **tuned, **more, prompt='hello there', settings=settings))
  assert answers['trained'] != answers['float']
  # Both at once, side by side: neither takes the other's place.
  commands = [line for pid in os.listdir('/proc') if pid.isdigit() for line in [_command(pid)] if 'tuned' in line]
  assert len(commands) == 2, commands
  status, found = console.try_post('/api/models/open', **tuned, load_in_4bit='yes')
  assert status == 400 and found['errors'] == ["load_in_4bit: 'yes': expected true or false"]


@pytest.mark.soak
def test_what_was_exported_is_listed(console):
  _, state = exported(console, run='other', to='hugging_face', result='model')
  assert state['exit_status'] == 0, state
  (other,) = [run for run in console.get('/api/models')['runs'] if run['name'] == 'other']
  assert {result['name'] for result in other['results']} == {'model', 'model_merged'}


@pytest.mark.slow
def test_the_command_answers_as_the_page_does(root, train_server, tmp_path):
  code = 'import sys\nfrom official_ext.cli import main\nsys.exit(main.main(sys.argv[1:]))'

  def predict(*flags):
    arguments = ['predict', str(root / 'digits/export/100'), *flags]
    return train_processes.Script(train_server(), tmp_path, code, arguments).finish()

  done = predict(f'--input=pixels={[0] * 63 + [5]}')
  logits = json.loads(done.stdout.splitlines()[-1])['logits']
  assert logits['values'] == [[0, 0, 0, 5, 0, 0, 0, 0, 0, 0]], done.stderr
  done = predict('--input=pixels=[1, 2]')
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1] == 'error: inputs.pixels: has the shape (1, 2), expected (None, 64)'


def test_there_are_two_at_most_and_idle_ones_end(monkeypatch):
  ended = []

  class Process:
    """A folder without a model: the choice is tested, the processes are above."""

    is_alive, is_busy = True, False

    def __init__(self, key):
      self.key, self.used = key, time.monotonic()

    def close(self):
      ended.append(self.key.folder)

  monkeypatch.setattr(models_api, 'ModelWorker', Process)
  workers = models_api.ModelWorkers(idle_seconds=0.4)
  for folder in 'aba':
    workers.get(models_api.ModelKey('saved_model', folder, 0.0))
  workers.get(models_api.ModelKey('saved_model', 'c', 0.0))
  assert ended == ['b']
  workers.get(models_api.ModelKey('saved_model', 'c', 1.0))  # Written anew.
  assert ended == ['b', 'c']
  deadline = time.monotonic() + 60
  while workers.loaded():
    assert time.monotonic() < deadline
    time.sleep(0.05)
  assert sorted(ended) == ['a', 'b', 'c', 'c']
  while workers._watch is not None:  # Before: its thread lived as long as the process.
    assert time.monotonic() < deadline
    time.sleep(0.05)
  workers.get(models_api.ModelKey('saved_model', 'a', 0.0))
  assert workers._watch is not None
