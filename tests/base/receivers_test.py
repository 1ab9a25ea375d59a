"""Messages, as runs and the queue compose them. They are sent in the tests of both."""

import socket

import pytest

from official_ext.base import errors
from official_ext.base import notify
from official_ext.base import safe_text


def test_a_message_names_who_where_and_what_without_passwords_and_control_characters():
  safe_text.add_secret('swordfish1')
  message = notify.compose('failed', 'a\x1b[31m', 'failed at step 3', ['OSError: swordfish1', 'loss 0.5\n'])
  assert message.title == f'a\\x1b[31m on {socket.gethostname()}: failed at step 3'
  assert message.body == 'OSError: ***\nloss 0.5\\n' and message.kind == 'failed'
  assert notify.compose('start', 'a', 'start', []).body == f'a on {socket.gethostname()}: start'


def test_references_are_variables_with_one_url_or_more(monkeypatch):
  monkeypatch.setenv('TWO', 'json://user:pw@one json://user:pw@two')
  assert notify.read_and_check(['env:TWO'], 'field') == ['json://user:pw@one', 'json://user:pw@two']
  with pytest.raises(errors.UserError, match='^field: expected env:NAME'):
    notify.read_and_check(['file:urls'], 'field')
