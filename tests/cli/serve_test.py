"""A real server: concurrent clients get the model's answers, computed in batches; mistakes are explained."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import official_ext
from official_ext.cli import main
from tests import tiers
from tests.deployment import runs

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
  return runs.make(tmp_path_factory.mktemp('serve') / 'digits', 'digits')


@contextlib.contextmanager
def serving(folder, *flags):
  """(process, address of the model) of a server that listens."""
  command = [sys.executable, '-m', 'official_ext.cli.main', 'serve', str(folder), '--port=0', *flags]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  try:
    line = process.stdout.readline()
    found = re.search(r'(http://127\.0\.0\.1:\d+/v1/models/\w+):predict', line)
    assert found, f'{line}{process.stderr.read()}'
    yield process, found[1]
  finally:
    process.kill()
    process.communicate()


def post(url, content):
  """(status, answer) of a prediction."""
  data = content if isinstance(content, bytes) else json.dumps(content).encode()
  try:
    with urllib.request.urlopen(urllib.request.Request(f'{url}:predict', data), timeout=60) as answer:
      return answer.status, json.load(answer)
  except urllib.error.HTTPError as error:
    return error.code, json.load(error)


def get(url):
  with urllib.request.urlopen(url, timeout=60) as answer:
    return answer.read().decode()


@tiers.parametrize('kind', ['onnx', 'run', 'saved_model', 'litert'], fast=1)
def test_concurrent_requests_get_the_answers_of_the_model_in_batches(kind, digits, tmp_path):
  folder = digits
  if kind != 'run':
    folder = tmp_path / 'out'
    assert main.main(['export', digits, f'--format={kind}', f'--output_dir={folder}', '--examples=0']) == 0
  images = np.random.default_rng(0).random([40, 8, 8, 1], np.float32)
  expected = official_ext.load(digits)(images, training=False).numpy()
  flags = ('--max_latency_ms=200', '--max_batch_size=16', '--name=digits')
  with serving(folder, *flags) as (process, url), concurrent.futures.ThreadPoolExecutor(40) as clients:
    root = url.partition('/v1/')[0]
    assert json.loads(get(f'{root}/healthz')) == {'status': 'ok'}
    (version,) = json.loads(get(url))['model_version_status']
    assert version['version'] == str(runs.STEP) and version['state'] == 'AVAILABLE'
    assert json.loads(get(f'{url}/metadata'))['inputs'][0]['name'] == 'image'
    found = list(clients.map(lambda image: post(url, {'instances': [image.tolist()]}), images))
    assert [status for status, _ in found] == [200] * 40
    np.testing.assert_allclose([answer['predictions'][0] for _, answer in found], expected, rtol=1e-4, atol=1e-4)
    status, answer = post(f'{url}/versions/{runs.STEP}', {'inputs': {'image': images.tolist()}})
    np.testing.assert_allclose(answer['outputs'], expected, rtol=1e-4, atol=1e-4)
    text = get(f'{root}/metrics')
    number = int(re.search(r'^official_ext_batch_size_count (\d+)', text, re.MULTILINE)[1])
    total = float(re.search(r'^official_ext_batch_size_sum (\S+)', text, re.MULTILINE)[1])
    assert total == 80 and number < 30  # 40 requests alone would be 40 computations, and the last one is three.
    assert 'official_ext_requests_total{status="200"} 41' in text
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_mistakes_are_answered_in_one_line(digits, tmp_path, capsys):
  folder = tmp_path / 'out'
  assert main.main(['export', digits, '--format=onnx', f'--output_dir={folder}', '--examples=0']) == 0
  with serving(folder, '--name=digits', '--max_body_mb=1') as (process, url):
    for content, status, words in (
      (b'{', 400, 'request: its body is invalid JSON: Expecting'),
      (b'\xff', 400, 'request: its body is invalid JSON'),
      ({'instances': [[1.0]]}, 400, r'image: an example has the shape \(1,\), expected \(8, 8, 1\)'),
      (b'[' * 2_000_000, 413, 'request: its body has more than 1000000 bytes'),
    ):
      found, answer = post(url, content)
      assert found == status and re.match(words, answer['error']) and '\n' not in answer['error'], answer
    found, answer = post(url.replace('digits', 'other'), {'instances': []})
    assert found == 404 and 'this server has the model digits, version 7' in answer['error']
    with pytest.raises(urllib.error.HTTPError) as raised:
      get(url.replace('/v1/', '/v2/'))
    assert raised.value.code == 404 and 'there are POST /v1/models/NAME:predict' in json.load(raised.value)['error']
    port = int(re.search(r':(\d+)/', url)[1])
    assert main.main(['serve', str(folder), f'--port={port}']) == 2
    assert f'--port={port}: another program listens there' in capsys.readouterr().err
    assert post(url, {'instances': np.zeros([1, 8, 8, 1]).tolist()})[0] == 200
    process.kill()
  assert main.main(['serve', str(tmp_path)]) == 2
  assert 'is not the folder of a run or of an export' in capsys.readouterr().err


@pytest.mark.slow
def test_an_open_request_is_answered_before_the_end(digits, tmp_path):
  folder = tmp_path / 'out'
  assert main.main(['export', digits, '--format=onnx', f'--output_dir={folder}', '--examples=0']) == 0
  with serving(folder, '--max_latency_ms=2000', '--name=digits') as (process, url):
    host = re.search(r'//([^/]+)/', url)[1]
    connection = http.client.HTTPConnection(host, timeout=30)
    body = json.dumps({'instances': np.zeros([1, 8, 8, 1]).tolist()})
    connection.request('POST', '/v1/models/digits:predict', body)
    time.sleep(0.5)  # It waits for others.
    process.send_signal(signal.SIGTERM)
    answer = connection.getresponse()
    assert answer.status == 200 and len(json.load(answer)['predictions'][0]) == 10
    assert process.wait(20) == 0
