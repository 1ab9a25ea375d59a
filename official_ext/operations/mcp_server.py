"""A server of the Model Context Protocol over the runs of a folder, on stdin and stdout, for coding agents.

Its tools are the operations of `ext.runs`. They read; those that start, stop or resume runs exist only if changes are
allowed. None deletes anything. https://modelcontextprotocol.io
"""

from collections.abc import Callable
import functools
import os
from typing import Any

from mcp import types
from mcp.server import mcpserver
from mcp.server.mcpserver import exceptions

from official_ext.base import __version__
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.operations import run_interface
from official_ext.operations.runs import run_folders

_MAX_WAIT_SECONDS = 60.0  # Clients give up on longer calls.
_INSTRUCTIONS = """Runs of official_ext, a library for training with TensorFlow, in one folder. A run is named by its
path below the folder. Conditions are such as learning_rate=1e-3, accuracy>0.9 or name~resnet."""


class RunTools:
  """The tools, each a method with JSON values; a mistake is an error with one line."""

  def __init__(self, root: str):
    """Takes the folder of the runs."""
    self._root = os.path.abspath(root)

  def list_runs(
    self,
    filters: list[str] | None = None,
    status: list[str] | None = None,
    experiment: list[str] | None = None,
    tag: list[str] | None = None,
    sort: str = 'name',
  ) -> list[dict[str, Any]]:
    """List runs with status, step and last metrics. `sort` is a metric (the best first), a field, or 'started'."""
    found = run_interface.list(self._root, status or (), experiment or (), tag or (), filters or (), sort)
    return [self._summary(run) for run in found]

  def show_run(self, run: str) -> dict[str, Any]:
    """Show one run: status with the reason, step, metrics, the best evaluation, and the end of its output."""
    one = self._run(run)
    return _shown({**self._summary(one), 'best': _best(one.best()), 'log': one.log()})

  def get_config(self, run: str) -> dict[str, Any]:
    """The configuration of a run: dotted path -> value."""
    return _shown(self._run(run).params())

  def get_metric(self, run: str, name: str, last: int = 100) -> dict[str, Any]:
    """The curve of a metric, such as eval/accuracy or train/training_loss: the last pairs of step and value."""
    one = self._run(run)
    values = one.metrics(name)
    if not values and (known := one.metric_names()):
      hint = errors.did_you_mean(name, known, after=' ')
      raise errors.UserError(f'{name}: {run} has no such metric yet; {hint}it has {", ".join(known)}')
    best = _best(one.best(name.partition('/')[2] or name))
    return _shown({'count': len(values), 'values': [list(pair) for pair in values[-max(1, last) :]], 'best': best})

  def get_log(self, run: str, lines: int = 50) -> list[str]:
    """The last lines of the output of a run that was started detached."""
    return _shown(self._run(run).log(lines))

  def wait_for_run(self, run: str, until: str = run_interface.ENDED, timeout_seconds: float = 30) -> dict[str, Any]:
    """Wait until a run has ended, or a condition such as step>=100 holds: 60 seconds at most for each call."""
    one = self._run(run)
    reached = one.wait(until, max(0.0, min(timeout_seconds, _MAX_WAIT_SECONDS)))
    return _shown({'reached': reached, **self._summary(one)})

  def start_run(
    self, experiment: str, name: str, settings: dict[str, Any] | None = None, mode: str = 'train_and_eval'
  ) -> dict[str, Any]:
    """Start a new run of an experiment, detached; `settings` are dotted paths or short names with values."""
    path = run_folders.checked_folder(self._root, name)
    if os.path.lexists(path):
      raise errors.UserError(f'{name}: exists already; resume it, or choose another name')
    return self._summary(run_interface.start(experiment, path, settings, mode))

  def stop_run(self, run: str) -> dict[str, Any]:
    """Ask a run to save and to stop."""
    one = self._run(run)
    one.stop()
    return self._summary(one)

  def resume_run(self, run: str, train_steps: int | None = None) -> dict[str, Any]:
    """Resume a run from its newest checkpoint, detached; `train_steps` extends one that has finished."""
    one = self._run(run)
    one.resume(train_steps)
    return self._summary(one)

  def clone_run(self, run: str, name: str = '', settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start a new run with the configuration of another, but for some settings, detached."""
    return self._summary(self._run(run).clone(name, settings))

  def _run(self, name: str) -> run_interface.Run:
    return run_interface.Run(run_folders.get_run(self._root, name), self._root)

  def _summary(self, run: run_interface.Run) -> dict[str, Any]:
    summary = run.summary()
    names = (
      'status',
      'reason',
      'experiment',
      'step',
      'train_steps',
      'eta_seconds',
      'train',
      'evaluation',
      'tags',
      'note',
    )
    return _shown({'name': run.name, **{name: getattr(summary, name) for name in names}})


class _Server(mcpserver.MCPServer):
  """Refuses arguments that a tool does not have: the base class ignores a misspelt one, and its default counts."""

  async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
    """See base class."""
    tools = {tool.name: list(tool.input_schema['properties']) for tool in await self.list_tools()}
    known = tools.get(name, list(arguments))  # An unknown tool is the base class's error.
    for wrong in sorted(set(arguments) - set(known)):
      hint = errors.did_you_mean(wrong, known, after=' ')
      raise exceptions.ToolError(f'{name}: {wrong}: no such argument; {hint}there are {", ".join(known)}')
    return await super().call_tool(name, arguments, context)


_READING = ('list_runs', 'show_run', 'get_config', 'get_metric', 'get_log', 'wait_for_run')
_CHANGING = ('start_run', 'stop_run', 'resume_run', 'clone_run')


def make_server(root: str, allow_changes: bool = False) -> mcpserver.MCPServer:
  """The server.

  Args:
    root: the folder of the runs.
    allow_changes: whether it has the tools that start, stop and resume runs.
  """
  server = _Server('official-ext', version=__version__, instructions=_INSTRUCTIONS, log_level='ERROR')
  tools = RunTools(root)
  for name in (*_READING, *(_CHANGING if allow_changes else ())):
    function: Callable[..., Any] = getattr(tools, name)
    reads = name in _READING
    hints = types.ToolAnnotations(read_only_hint=reads, destructive_hint=False, open_world_hint=False)
    server.add_tool(_with_messages(function), name=name, annotations=hints)
  return server


def _with_messages(function: Callable[..., Any]) -> Callable[..., Any]:
  """The same function, whose mistakes reach the client: it gets no message of other exceptions."""

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    try:
      return function(*args, **kwargs)
    except (errors.UserError, errors.StorageError) as error:
      raise exceptions.ToolError(safe_text.mask('; '.join(str(error).splitlines()))) from error

  return call


def _best(found: run_interface.Best | None) -> json_values.Json:
  return None if found is None else found._asdict()


def _shown(values: object) -> Any:
  """Values as strict JSON without passwords."""
  return safe_text.mask_values(json_values.as_strict(values))
