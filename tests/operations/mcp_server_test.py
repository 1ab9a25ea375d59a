"""`official-ext mcp`, a process that the package's own client talks to."""

import asyncio
import os
import pathlib
import sys

import pytest

from tests.operations.runs import folders
from tests.operations.runs.folders import event

mcp = pytest.importorskip('mcp', reason="needs: pip install 'official-ext[mcp]'")

ROOT = pathlib.Path(__file__).resolve().parents[2]
READING = ['list_runs', 'show_run', 'get_config', 'get_metric', 'get_log', 'wait_for_run']
CHANGING = ['start_run', 'stop_run', 'resume_run', 'clone_run']


@pytest.fixture
def root(tmp_path):
  ended = {'identity': folders.ended_process(), 'status': 'finished'}
  folders.make(tmp_path, 'a', [event('eval', 10, accuracy=0.5), event('eval', 20, accuracy='NaN')], **ended)
  folders.make(tmp_path, 'b', [event('eval', 10, accuracy=0.75)], rate=0.1, **ended)
  return tmp_path


def session(root, talk, *flags):
  """The result of talk(client), with a server of a folder."""
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(root / '.cache')}
  words = ['-m', 'official_ext.cli.main', 'mcp', str(root), *flags]
  server = mcp.StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=str(root))

  async def run():
    async with mcp.Client(server, read_timeout_seconds=120) as client:
      return await talk(client)

  return asyncio.run(run())


def value_of(result):
  assert not result.is_error, result
  found = result.structured_content
  return found['result'] if set(found) == {'result'} else found


def test_a_session_reads_runs(root):
  async def talk(client):
    tools = (await client.list_tools()).tools
    calls = [
      ('list_runs', {'sort': 'accuracy'}),
      ('list_runs', {'filters': ['learning_rate>0.05']}),
      ('show_run', {'run': 'b'}),
      ('get_config', {'run': 'b'}),
      ('get_metric', {'run': 'a', 'name': 'eval/accuracy'}),
      ('wait_for_run', {'run': 'a', 'timeout_seconds': 1}),
      ('get_log', {'run': 'a'}),
    ]
    found = [value_of(await client.call_tool(name, arguments)) for name, arguments in calls]
    wrong = [
      await client.call_tool(name, arguments)
      for name, arguments in (
        ('show_run', {'run': 'c'}),
        ('show_run', {'run': '../x'}),
        ('list_runs', {'sort': 'x'}),
        ('list_runs', {'filter': ['accuracy>2']}),
        ('get_metric', {'run': 'a', 'name': 'eval/acuracy'}),
      )
    ]
    return tools, found, wrong

  tools, (ordered, filtered, shown, config, curve, waited, log), wrong = session(root, talk)
  assert [tool.name for tool in tools] == READING and all(tool.annotations.read_only_hint for tool in tools)
  assert [run['name'] for run in ordered] == ['b', 'a'] and [run['name'] for run in filtered] == ['b']
  assert shown['status'] == 'finished' and shown['best'] == {'metric': 'accuracy', 'value': 0.75, 'step': 10}
  assert config['learning_rate'] == 0.1 and log == []
  assert curve == {
    'count': 2,
    'values': [[10, 0.5], [20, 'NaN']],
    'best': {'metric': 'accuracy', 'value': 0.5, 'step': 10},
  }
  assert waited['reached'] and waited['status'] == 'finished'
  texts = [result.content[0].text for result in wrong]
  assert all(result.is_error for result in wrong)
  assert 'c: no run of that name' in texts[0] and 'no run has a metric or a field of that name' in texts[2]
  # Ignored, it would have listed every run.
  assert texts[3] == (
    'list_runs: filter: no such argument; did you mean filters? there are filters, status, experiment, tag, sort'
  )
  assert texts[4].endswith('a has no such metric yet; did you mean eval/accuracy? it has eval/accuracy')


def test_changes_exist_only_if_they_are_allowed(root):
  program = root / 'train.py'
  program.write_text('import sys\nprint("trained with", *sys.argv[1:], flush=True)\n')

  async def talk(client):
    names = [tool.name for tool in (await client.list_tools()).tools]
    started = value_of(await client.call_tool('start_run', {'experiment': 'digits', 'name': 'c', 'settings': {'x': 1}}))
    waited = value_of(await client.call_tool('wait_for_run', {'run': 'c', 'timeout_seconds': 60}))
    log = value_of(await client.call_tool('get_log', {'run': 'c', 'lines': 1}))
    refused = [
      await client.call_tool('start_run', {'experiment': 'digits', 'name': name}) for name in ('a', '../elsewhere')
    ]
    stopped = await client.call_tool('stop_run', {'run': 'a'})
    return names, started, waited, log, [*refused, stopped]

  names, started, waited, log, refused = session(root, talk, '--allow_changes')
  assert names == READING + CHANGING and started['name'] == 'c'
  assert waited['reached'] and '--experiment=digits' in log[0] and '--set=x=1' in log[0]
  assert all(result.is_error for result in refused)
  assert 'a: exists already' in refused[0].content[0].text and 'a: does not run: finished' in refused[2].content[0].text
  assert not (root.parent / 'elsewhere').exists()

  async def without(client):
    return await client.call_tool('stop_run', {'run': 'a'})

  unknown = session(root, without)
  assert unknown.is_error and 'Unknown tool: stop_run' in unknown.content[0].text
