"""The buttons of a run while its status changes on the open page: every button, every status."""

import atexit
import dataclasses
import datetime
import functools
import json
import pathlib
import subprocess

import pytest

from official_ext.base import json_values
from official_ext.base import processes
from official_ext.operations.runs import statuses
from tests import tiers
from tests.operations.runs import folders

_LONG_AGO = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)).isoformat()
_LIVING = ('starting', 'running', 'stopping', 'hung')
_OTHERS = {'Clone with changes': 'enabled', 'Compare': 'enabled', 'TensorBoard': 'enabled'}


def _expected(status):
  """The state of each button of the page of a run: what its user can do with a run of that status."""
  living = status in _LIVING
  if living or status == 'finished':
    resume = 'hidden'
  else:
    resume = 'disabled' if status in ('submitted', 'unknown') else 'enabled'  # No process of ours, or no command.
  after_end = 'disabled' if living else 'enabled'
  extend = {'Extend': 'enabled' if status == 'finished' else 'hidden'}
  stop = {'Stop now' if status == 'stopping' else 'Stop': 'enabled' if living else 'hidden'}
  return {**stop, 'Resume': resume, **extend, **_OTHERS, 'Archive': after_end, 'Delete': after_end}


def _bulk(status):
  """The state of the buttons over the list, if the run is selected."""
  living, word = status in _LIVING, {True: 'enabled', False: 'disabled'}
  resumable = not living and status != 'finished'
  return {'Stop': word[living], 'Resume': word[resumable], 'Archive': word[not living], 'Delete': word[not living]}


@functools.cache
def _younger():
  """The identity of a process that lives, and has started after all that have ended."""
  folders.ended_process()
  process = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
  atexit.register(process.kill)
  own = processes.own_identity()
  return dataclasses.replace(own, pid=process.pid, pid_start=processes.start_of(process.pid))


def _become(root, name, status):
  """Writes the files that give a run a status, and checks that they do."""
  own, ended = processes.own_identity(), folders.ended_process()
  values, started, stop = {'status': status, 'identity': ended}, None, None
  if status in ('running', 'stopping', 'hung'):
    values = {'status': 'running', 'identity': own}
    stop = {**own.as_dict(), 'requested': json_values.timestamp_now()} if status == 'stopping' else None
    values |= {'heartbeat': _LONG_AGO, 'updated': _LONG_AGO} if status == 'hung' else {}
  elif status == 'dead':
    values['status'] = 'running'
  elif status == 'starting':
    values = {'status': 'preempted', 'identity': ended, 'started': _LONG_AGO}
    started = {**_younger().as_dict(), 'started': json_values.timestamp_now()}
  elif status == 'submitted':
    values['status'] = 'preempted'
    started = {'engine': 'slurm', 'job': '17', 'attempts_before': 1, 'started': json_values.timestamp_now()}
  run = folders.make(root, name, [folders.event('train', 10, loss=1.0)], **values)
  for file, content in {'started.json': started, 'stop.json': stop}.items():
    pathlib.Path(run.file(file)).write_text(json.dumps(content)) if content else _remove(run, file)
  if status == 'unknown':
    _remove(run, 'run.json')
  assert statuses.of_run(run).status == status


def _remove(run, file):
  pathlib.Path(run.file(file)).unlink(missing_ok=True)


def _states(bar, names):
  """The state of buttons in a toolbar: hidden, disabled or enabled."""
  found = {}
  for name in names:
    button = bar.get_by_role('button', name=name, exact=True).or_(bar.get_by_role('link', name=name, exact=True))
    found[name] = 'hidden' if not button.count() else 'enabled' if button.is_enabled() else 'disabled'
  return found


def _until(page, bar, expected, status):
  """Waits until the buttons are in the expected states."""
  for _ in range(200):
    if (found := _states(bar, expected)) == expected:
      return
    page.wait_for_timeout(50)
  assert found == expected, status


@pytest.mark.slow
@tiers.parametrize('order', [statuses.STATUSES, statuses.STATUSES[::-1]], fast=1, ids=['down', 'up'])
def test_every_button_follows_every_status_on_an_open_page(new_page, console, runs_folder, order):
  name = 'changing'
  _become(runs_folder, name, order[-1])
  page, table = new_page(), new_page()
  page.goto(f'{console.url}/run?run={name}')
  table.goto(f'{console.url}/runs?selected={name}')
  buttons, bulk = page.locator('.run-buttons'), table.locator('.bulk')
  for status in order:
    _become(runs_folder, name, status)
    page.locator(f'.run-head .status[data-status="{status}"]').wait_for()
    _until(page, buttons, _expected(status), status)
    _until(table, bulk, _bulk(status), status)


@pytest.mark.slow
def test_the_table_has_every_status_and_every_button(page, console, runs_folder):
  _become(runs_folder, 'one', 'preempted')
  page.goto(f'{console.url}/run?run=one')
  page.locator('.run-buttons').wait_for()
  shown = page.locator('.run-buttons').evaluate('(bar) => [...bar.children].map((each) => each.textContent)')
  assert set(shown) == set(_expected('preempted'))


@pytest.mark.slow
def test_a_reason_is_given_for_a_button_that_is_disabled(page, console, runs_folder):
  _become(runs_folder, 'waiting', 'submitted')
  page.goto(f'{console.url}/run?run=waiting')
  button = page.get_by_role('button', name='Resume', exact=True)
  button.wait_for()
  assert 'was submitted' in button.get_attribute('title')
