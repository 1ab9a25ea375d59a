"""Messages, as runs and the queue compose them. They are sent in the tests of both."""

import socket

import pytest

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import receivers


def test_a_message_says_who_where_and_what_without_passwords_and_control_characters():
  credentials.add_secret('swordfish1')
  message = receivers.compose('failed', 'a\x1b[31m', 'failed at step 3', ['OSError: swordfish1', 'loss 0.5\n'])
  assert message.title == f'a\\x1b[31m on {socket.gethostname()}: failed at step 3'
  assert message.body == 'OSError: ***\nloss 0.5\\n' and message.kind == 'failed'
  assert receivers.compose('start', 'a', 'start', []).body == f'a on {socket.gethostname()}: start'


def test_several_messages_become_one():
  first, second = (receivers.Message('failed', f'title {n}', f'body {n}\nmore') for n in (1, 2))
  assert receivers.digest([first]) is first
  assert receivers.digest([first, second]) == receivers.Message('', '2 alerts', 'title 1\n  body 1\ntitle 2\n  body 2')


def test_references_are_named_without_their_urls(tmp_path, monkeypatch):
  monkeypatch.setenv('TWO', 'json://user:pw@one json://user:pw@two')
  file = tmp_path / 'urls'
  file.write_text('json://three')
  file.chmod(0o600)
  found = receivers.read_and_check(['env:TWO', f'file:{file}', 'env:TWO'], '--alert', files=True)
  assert list(found) == ['env:TWO[0]', 'env:TWO[1]', f'file:{file}']
  with pytest.raises(errors.UserError, match='^field: expected env:NAME'):
    receivers.read_and_check([f'file:{file}'], 'field')
