"""Passwords, tokens and keys in files and printed output."""

import io
import logging
import time

import pytest

from official_ext.base import safe_text
from official_ext.training.writers import writers

MASKED = {
  'http://user:PW@host/x': 'http://user:***@host/x',
  '--set=trainer.mlflow.tracking_uri=http://u:PW@h': '--set=trainer.mlflow.tracking_uri=http://u:***@h',
  'postgresql+psycopg2://u:PW@h/db and http://h:80/': 'postgresql+psycopg2://u:***@h/db and http://h:80/',
  'http://u:P/W@h:5/x': 'http://u:***@h:5/x',
  'http://u:P@W@h/x': 'http://u:***@h/x',
  'http://u:P:W@h/x': 'http://u:***@h/x',
  'redis://:PW@h': 'redis://:***@h',
  'https://abc123@github.com/x': 'https://***@github.com/x',
  'http://h/x?token=PW&y=1&sig=PW': 'http://h/x?token=***&y=1&sig=***',
  'http://h/x?X-Amz-Signature=PW&key=PW': 'http://h/x?X-Amz-Signature=***&key=***',
  "{'password': 'P W', 'x': 1}": "{'password': '***', 'x': 1}",
  '{"my_api_key": "PW"}': '{"my_api_key": "***"}',
  '--params_override={task: {password: PW, b: 2}}': '--params_override={task: {password: ***, b: 2}}',
  'task.api_key=PW task.secret="P W"': 'task.api_key=*** task.secret="***"',
  'Authorization: Bearer abcdefghijklmnopqrstuv': 'Authorization: Bearer ***',
  'ghp_abcdefghijklmnopqrstuvwxyz0123': '***',
  'key AKIAABCDEFGHIJKLMNOP.': 'key ***.',
}
PLAIN = [
  'token_accuracy=0.5 pad_token=[PAD] cls_token=x num_tokens=5 tokenizer=bert',
  'http://h:80/path?e=a@b.c',
  'gs://bucket/x@1',
  'user@example.com',
  'see http://x.y/z and mail a@b.c',
  'task.api_key: expected str, got 5',
  'trainer.train_steps: expected int',
  '3f786850e387550fdab836ed7e6dc881de23001b',
  'a=b',
  'key=5',
  'env:MY_URL',
]


@pytest.mark.parametrize('text', MASKED)
def test_secrets_are_masked(text):
  assert safe_text.mask(text) == MASKED[text]
  assert safe_text.mask(MASKED[text]) == MASKED[text]


@pytest.mark.parametrize('text', PLAIN)
def test_what_is_no_secret_stays(text):
  assert safe_text.mask(text) == text and not safe_text.is_masked(text)


def test_values_under_names_of_secrets_are_masked_at_every_depth():
  values = {'a': [{'api_key': 'PW', 'num': 5}, 'http://u:PW@h'], 'b': ('x',), 'token': '', 'cls_token': 'x', 3: None}
  assert safe_text.mask_values(values) == {
    'a': [{'api_key': '***', 'num': 5}, 'http://u:***@h'],
    'b': ('x',),
    'token': '',
    'cls_token': 'x',
    3: None,
  }


def test_what_the_environment_holds_is_masked(monkeypatch):
  monkeypatch.setenv('WANDB_API_KEY', '0123456789abcdef')
  monkeypatch.setenv('NO_SECRET', 'short')
  monkeypatch.setenv('PWD', '/home/somebody')  # The folder, for once.
  assert safe_text.mask('/home/somebody/x') == '/home/somebody/x'
  assert safe_text.mask('the key 0123456789abcdef is wrong, short') == 'the key *** is wrong, short'


@pytest.mark.parametrize(
  'text',
  [
    'a_' * 50_000,
    'a.' * 50_000 + '=',
    '://' * 10_000,
    'http://' + 'u:' * 30_000,
    'password=' * 10_000,
    '"' * 50_000,
    '{' * 50_000,
    '-----BEGIN PRIVATE KEY' * 2000,
  ],
)
def test_no_text_takes_long(text):
  began = time.process_time()
  safe_text.mask(text)
  assert time.process_time() - began < 2


def test_a_masked_value_is_known_as_such():
  assert all(map(safe_text.is_masked, ('***', 'http://u:***@h', 'https://***@h', 'http://h?token=***')))


def test_streams_and_logs_are_masked():
  stream = io.StringIO()
  masked = safe_text.MaskedStream(stream)
  print('see', 'http://u:PW@h', file=masked)
  handler = logging.StreamHandler(masked)
  safe_text.mask_logs(handler)
  record = logging.getLogger('test').makeRecord('test', logging.ERROR, 'f.py', 1, 'at %s', ('http://u:PW@h',), None)
  handler.handle(record)
  try:
    raise ValueError('http://u:PW@h')
  except ValueError as error:
    handler.handle(
      logging.getLogger('test').makeRecord(
        'test', logging.ERROR, 'f.py', 1, 'failed', (), (type(error), error, error.__traceback__)
      )
    )
  assert 'PW' not in stream.getvalue() and stream.getvalue().count('http://u:***@h') == 4
  assert 'Traceback' in stream.getvalue()


def test_no_writer_gets_a_password():

  class Keeps(writers.Writer):
    def write(self, event, step, values):
      self.values = values

  writer = Keeps()
  values = {'error': 'no answer from http://u:PW@h', 'nested': {'x': 'a'}, 'n': 0.5}
  writers.Writers([writer]).write('failed', 1, values)
  assert writer.values == {'error': 'no answer from http://u:***@h', 'nested': {'x': 'a'}, 'n': 0.5}
