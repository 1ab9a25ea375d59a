"""The errors that end a run, with their exit statuses; the suggestion of the nearest known name for their messages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import difflib
import traceback
from typing import ParamSpec


def nearest_names(name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
  """Returns the known names most similar to a given one, the nearest first.

  Args:
    name: the given one; it need not be a string.
    known: the valid ones.
    count: how many to return at most.
    cutoff: how similar they must be, from 0 (anything) to 1 (the same): see difflib.get_close_matches.
  """
  return difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff)


def did_you_mean(
  name: object,
  known: Iterable[str],
  otherwise: str = '',
  before: str = '',
  after: str = '',
  show: Callable[[str], str] = str,
) -> str:
  """The part of a message that names the nearest known name: `<before>did you mean dense?<after>`.

  Args:
    name: the given one.
    known: the known names.
    otherwise: the text to use if no known name is near.
    before: text to put before it.
    after: text to put after it.
    show: how a name is written, such as `repr`.
  """
  near = nearest_names(name, known)
  return f'{before}did you mean {show(near[0])}?{after}' if near else otherwise


_Arguments = ParamSpec('_Arguments')


class UserError(ValueError):
  """A mistake in the command line, the configuration or the files that it names.

  The message is one line: the dotted path, file or flag, the error, the fix. The driver prints it as
  `error: <message>`, without a traceback, and exits with status 2.

  Example:

    >>> raise ext.UserError('task.train_data.input_path: data.csv: no such file; name another')
    Traceback (most recent call last):
      ...
    official_ext.base.errors.UserError: task.train_data.input_path: data.csv: no such file; name another
  """

  exit_status = 2


class UserErrors(UserError):  # noqa: N818  # Several.
  """Several mistakes, reported together: one line each.

  Attributes:
    lines: the messages.

  Example:

    >>> ext.UserErrors(['trainer.train_steps: is 0; set it', 'task.name: is missing; set it']).lines
    ('trainer.train_steps: is 0; set it', 'task.name: is missing; set it')
  """

  def __init__(self, lines: Sequence[str]):
    super().__init__('\n'.join(lines))
    self.lines = tuple(lines)


class StateError(UserError):
  """A request that is right, and that the present state forbids: a run lives, a job is over, another has the folder.

  The same request may succeed later. The driver and the commands end with status 4.
  """

  exit_status = 4


class StateErrors(UserErrors, StateError):  # noqa: N818  # Several.
  """Several of them, one line each."""


def joined(lines: Sequence[str], failures: Sequence[BaseException]) -> UserErrors:
  """One error with the lines of several; one about the state if all of them are."""
  are_states = bool(failures) and all(isinstance(error, StateError) for error in failures)
  return (StateErrors if are_states else UserErrors)(lines)


def lines_of(error: BaseException) -> Sequence[str]:
  """The lines of one of this module's errors: one line, or several for `UserErrors`."""
  # gin adds lines that name the configurable called.
  return error.lines if isinstance(error, UserErrors) else [str(error).strip().split('\n')[0]]


def reason_of(error: BaseException) -> str:
  """The system's words for the error of a file or socket, such as 'Permission denied'; the message of another error."""
  return (error.strerror if isinstance(error, OSError) else '') or str(error)


def message_of_model(error: BaseException) -> str:
  """The message of an error in a model, in one line of bounded length, without TensorFlow's description of the op."""
  return ' '.join(str(getattr(error, 'message', error)).split())[:300]


def origin(error: BaseException) -> str:
  """The origin of an error: `module my_tasks (/home/me/my_tasks.py, line 3)`, the module that was being imported."""
  frames = list(traceback.walk_tb(error.__traceback__))
  packages = [frame.f_globals.get('__name__', '').partition('.')[0] for frame, _ in frames]
  modules = [number for number, (frame, _) in enumerate(frames) if frame.f_code.co_name == '<module>']
  if modules:  # Libraries wrap sys.exit, whose frames then come last.
    own = [number for number in range(modules[-1], len(frames)) if packages[number] == packages[modules[-1]]]
  else:
    own = [number for number, (frame, _) in enumerate(frames) if 'site-packages' not in frame.f_code.co_filename]
  frame, line = frames[own[-1] if own else -1]
  name = f'module {frames[modules[-1]][0].f_globals.get("__name__")} ' if modules else ''
  return f'{name}({frame.f_code.co_filename}, line {line})'


class Mistakes:
  """Collects mistakes, and raises them together at the end of its `with` block.

  A second message about the same field or flag (the text before `: `) is dropped: it often only follows from the
  first.

  Attributes:
    lines: the messages so far.
  """

  def __init__(self) -> None:
    self.lines: list[str] = []

  def __enter__(self) -> 'Mistakes':
    return self

  def __exit__(self, error_type, error, trace) -> None:
    if error is not None and (not isinstance(error, UserError) or not self.lines):
      return
    if error is not None:
      self._note(error, '')
    if len(self.lines) == 1:
      raise UserError(self.lines[0]) from error
    if self.lines:
      raise UserErrors(self.lines) from error

  @contextlib.contextmanager
  def noted(self, suffix: str = '') -> Iterator[None]:
    """Catches a UserError of the block inside, and continues after the block.

    Args:
      suffix: text to add to each message, such as the file that the value is from.
    """
    try:
      yield
    except UserError as error:
      self._note(error, suffix)

  def check(self, check: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
    """Calls a check, and notes its UserError."""
    with self.noted():
      check(*arguments, **named)

  def _note(self, error: UserError, suffix: str) -> None:
    known = {line.partition(': ')[0] for line in self.lines}
    self.lines += [line + suffix for line in lines_of(error) if line.partition(': ')[0] not in known]


class CheckpointError(RuntimeError):
  """A checkpoint could not be saved, or there are some and none can be used.

  Attributes:
    path: of the checkpoint that could not be saved.
  """

  exit_status = 1
  path = ''


class StorageError(RuntimeError):
  """A file that a run cannot do without could not be written: the disk is full, or gone. The message names it."""

  exit_status = 1


class LockLostError(CheckpointError):
  """Another training has taken the run's folder: this one may write nothing more there."""


class WorkerError(RuntimeError):
  """Another worker of the run was lost, or did not come: start all of them again."""

  exit_status = 1


class WorkerLostError(WorkerError):
  """Another worker was killed, or cannot be reached: the same command resumes, as after a preemption."""

  exit_status = 75


class DivergedError(RuntimeError):
  """Training met more non-finite steps than `trainer.nonfinite` allows."""

  exit_status = 3
  status = 'diverged'


class HungError(RuntimeError):
  """No progress for `runtime.hang_seconds`: the same command resumes from the newest checkpoint."""

  exit_status = 75
  status = 'hung'


class EvaluationInterruptedError(Exception):
  """An evaluation was interrupted because the run was preempted."""


class PreemptedError(Exception):
  """The run was preempted and has saved: the same command resumes from there."""

  exit_status = 75
  status = 'preempted'


class StopTraining(Exception):  # noqa: N818  # Nothing is wrong.
  """Raised by an action: training has reached its goal, saves, and counts as finished. The message says why.

  Example:

    >>> def stop_early(logs):
    ...   if logs['loss'] < 0.1:
    ...     raise ext.StopTraining('the loss is below 0.1')
    >>> action = ext.OnEvent('train', stop_early)
  """
