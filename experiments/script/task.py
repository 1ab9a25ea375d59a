"""The task `script`: runs a Python file, and lets its trainer train."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import hashlib
from importlib import machinery
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import types
from typing import Any

from absl import logging
import tensorflow as tf

import official_ext as ext

from . import callback as callback_lib
from . import configs
from . import parameters
from . import results
from . import source

COPY = 'script.py'  # In the run's folder.
_CHECKPOINT = re.compile(r'checkpoint-(\d+)')
_STATE = 'trainer_state.json'  # The last file of a checkpoint of Hugging Face's.
_MAX_MESSAGE = 300


class ScriptError(RuntimeError):
  """Something in a script has failed. The message begins with the place: `custom01.py:33: ValueError: ...`."""

  has_place = True


@ext.register_task(configs.ScriptTaskConfig)
class ScriptTask(ext.LoopTask):
  """Runs a script, whose trainer trains, and saves its model and tokenizer."""

  def __init__(self, params: configs.ScriptTaskConfig, logging_dir: str | None = None, name: str | None = None):
    """See base class. Reads the script."""
    super().__init__(params, logging_dir=logging_dir, name=name)
    self._script = source.Script(params.script)
    self._module = types.ModuleType('')  # Not its dictionary, which Keras would wrap.
    self._saved = ''

  @property
  def _namespace(self) -> dict[str, object]:
    return vars(self._module)

  # Before.

  def check_loop(self, params: object, model_dir: str, previous: Mapping[str, object] | None) -> None:
    """See base class: the result gets no place that something else has, and a finished run is unchanged."""
    if '://' in (self.config.output_dir or model_dir):
      named = 'task.output_dir' if self.config.output_dir else '--model_dir'
      raise ext.UserError(
        f'{named}: {self.config.output_dir or model_dir}: is remote, and the trainer of a script writes local files; '
        'set task.output_dir to a local folder'
      )
    if previous is not None and previous['status'] == 'finished':
      self._check_unchanged(params, model_dir, previous)
    elif previous is None or previous.get('output_dir') != self.config.output_dir:
      self._check_free(model_dir)

  def _check_unchanged(self, params: Any, model_dir: str, previous: Mapping[str, Any]) -> None:
    """Refuses a script or parameters that a finished run was not made with.

    Raises:
      UserError: naming them.
    """
    if (previous.get('script_sha256'), previous.get('parameters_sha256')) == (self._digest, _digest_of(params)):
      return
    before, now = previous.get('parameters') or {}, _noted(params)
    changed = [name for name in now if before.get(name) != now[name]]
    # Texts may be secrets, which run.json does not hold.
    changes = [name if isinstance(now[name], str) else f'{name}: {before.get(name)} -> {now[name]}' for name in changed]
    changes += ['the script'] if previous.get('script_sha256') != self._digest else []
    raise ext.UserError(
      f'--model_dir={model_dir}: holds a finished run, which other parameters have made ({", ".join(changes)}); name '
      'another folder'
    )

  def _check_free(self, model_dir: str) -> None:
    """Refuses places that hold something already.

    Raises:
      UserError: naming it.
    """
    output_dir = self._output_dir(model_dir)
    named = f'task.output_dir: {output_dir}' if self.config.output_dir else f'--model_dir={model_dir}'
    for folder in (os.path.join(output_dir, name) for name in results.FOLDERS):
      if self.config.model_path and os.path.realpath(folder) == os.path.realpath(self.config.model_path):
        raise ext.UserError(f'{named}: {folder} is the model that training begins with; name another folder')
      if os.path.isdir(folder) and os.listdir(folder):
        raise ext.UserError(f'{named}: {folder} exists already; name another folder, or move it away')
    if _checkpoints(output_dir):
      raise ext.UserError(
        f'{named}: holds {os.path.basename(_checkpoints(output_dir)[-1])} of another run; name another folder, or '
        'move it away'
      )

  def _output_dir(self, model_dir: str) -> str:
    return os.path.abspath(os.path.expanduser(self.config.output_dir) or model_dir)

  def code_files(self) -> Mapping[str, object]:
    """The script: see base class."""
    return {os.path.basename(self._script.path): self._script.absolute_path}

  @property
  def _digest(self) -> str:
    return hashlib.sha256(self._script.content).hexdigest()

  # The run.

  def run_loop(self, run: ext.LoopRun) -> Mapping[str, object]:
    """See base class."""
    run.note(
      script=self._script.path,
      script_sha256=self._digest,
      parameters=_noted(run.params),
      parameters_sha256=_digest_of(run.params),
      output_dir=self.config.output_dir,
      result=(run.previous or {}).get('result'),
    )
    if run.has_finished_before:
      return {}
    run.enter('load')
    run.keep(COPY, self._script.content)
    output_dir = run.model_dir if run.is_rehearsal else self._output_dir(run.model_dir)
    checkpoint = next(reversed(_checkpoints(output_dir) if run.is_resumed else []), None)
    with _current_folder_kept():
      return self._run(run, output_dir, checkpoint)

  def _run(self, run: ext.LoopRun, output_dir: str, checkpoint: str | None) -> Mapping[str, object]:
    callback = callback_lib.Callback(run)
    self._keep_tensorflow_off_gpus()
    trainer = self._execute(run.params, callback, output_dir, checkpoint)
    results.form_of(self._trained(trainer))
    results.check_tokenizer(self._namespace['tokenizer'])
    if run.stop_requested:  # There is nothing to save.
      return {}
    run.enter('train')
    self._train(trainer, checkpoint)
    run.model = self._trained(trainer)
    if not run.has_begun:
      self._complain(run)
    run.enter('save')
    self._saved = results.save(run.model, self._namespace['tokenizer'], output_dir)
    if not run.is_rehearsal:
      run.note(result=self._saved)
      print(f'Saved: {self._saved}', flush=True)
    return {**callback.last, **callback.summary}

  def check_result(self, model: object, folder: str) -> Sequence[str]:
    """See base class."""
    tokenizer = self._namespace['tokenizer']
    classes = {name: value for name, value in self._namespace.items() if isinstance(value, type)}
    return list(results.check(model, tokenizer, self._saved or results.save(model, tokenizer, folder), classes))

  def _complain(self, run: ext.LoopRun) -> None:
    message = (
      f'script: {self._script.path}: its trainer has never called `callback`: hand it over as callbacks=[callback]'
    )
    if run.is_rehearsal:
      raise ext.UserError(message)
    run.begin()
    logging.warning('%s', message)

  def _keep_tensorflow_off_gpus(self) -> None:
    """Leaves the memory of the GPUs to a script of another framework: TensorFlow would take some at its first use."""
    if not self._script.leaves_tensorflow_alone:
      return
    try:
      tf.config.set_visible_devices([], 'GPU')
    except RuntimeError as error:  # It is in use.
      logging.warning('TensorFlow keeps a part of the memory of the GPUs: %s', error)

  def _execute(self, params: object, callback: callback_lib.Callback, output_dir: str, resume: str | None) -> object:
    """Runs the file as a separate module, and returns its trainer."""
    name = self._module_name()
    self._module = types.ModuleType(name)
    self._module.__file__ = self._script.absolute_path
    self._module.__spec__ = machinery.ModuleSpec(name, None, origin=self._script.absolute_path)
    given = {parameters.OUTPUT_DIR: output_dir, parameters.RESUME: resume, parameters.CALLBACK: callback}
    self._namespace.update({**parameters.variables(params), **given})
    sys.modules[name] = self._module  # The place where pickle, and data classes, look for its definitions.
    folder = os.path.dirname(self._script.absolute_path)
    if folder not in sys.path:
      sys.path.insert(0, folder)
    with self._named_failures(1):
      exec(self._script.code, self._namespace)  # pylint: disable=exec-used
    missing = [f'`{name}`' for name in parameters.DEFINED if name not in self._namespace]
    if missing:
      raise ext.UserError(f'script: {self._script.path}: has run, and set no {", ".join(missing)}')
    trainer = self._namespace['trainer']
    if not callable(getattr(trainer, 'train', None)):
      raise ext.UserError(
        f'script: {self._script.path}:{self._script.line_that_sets("trainer")}: `trainer` is a '
        f'{type(trainer).__name__}, which has no method `train`'
      )
    return trainer

  def _module_name(self) -> str:
    """The name of the file, unless that is another module's."""
    name = os.path.basename(self._script.path).removesuffix('.py')
    try:
      found = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # A module without a specification.
      return f'{name}_script'
    is_itself = found is not None and os.path.realpath(found.origin or '') == os.path.realpath(self._script.path)
    return name if found is None or is_itself else f'{name}_script'

  def _trained(self, trainer: object) -> Any:
    """The trained model: a trainer may have put adapters around the model of the script."""
    model = getattr(trainer, 'model', None)
    return self._namespace['model'] if model is None or not hasattr(trainer, 'callback_handler') else model

  def _train(self, trainer: Any, checkpoint: str | None) -> None:
    """Lets the trainer train; one of Hugging Face's resumes from a checkpoint."""
    takes_checkpoint = 'resume_from_checkpoint' in inspect.signature(trainer.train).parameters
    with self._named_failures(self._script.line_that_sets('trainer')):
      if checkpoint and takes_checkpoint:
        trainer.train(resume_from_checkpoint=checkpoint)
      else:
        trainer.train()

  @contextlib.contextmanager
  def _named_failures(self, line: int) -> Iterator[None]:
    """A context in which the script, or a library for it, may raise anything.

    Args:
      line: the line that is named if no line of the script is in the traceback.

    Raises:
      ScriptError: naming the line, after the traceback was printed.
    """
    try:
      yield
    except Exception as error:
      if hasattr(error, 'exit_status'):  # The run's own.
        raise
      trace = traceback.TracebackException.from_exception(error)
      own = [number for number, frame in enumerate(trace.stack) if frame.filename == self._script.absolute_path]
      if own:
        line = trace.stack[own[-1]].lineno or line
        del trace.stack[: own[0]]
      print(*trace.format(), sep='', end='', file=sys.stderr, flush=True)
      message = ' '.join(str(error).split())[:_MAX_MESSAGE].rstrip('.')
      raise ScriptError(f'{self._script.path}:{line}: {type(error).__name__}: {message}') from error


@contextlib.contextmanager
def _current_folder_kept() -> Iterator[None]:
  """A context in which the script may go to another folder; later reports refer to this one."""
  folder = os.getcwd()
  try:
    yield
  finally:
    os.chdir(folder)


def _noted(params: object) -> dict[str, Any]:
  """The parameters as run.json has them."""
  return json.loads(json.dumps(parameters.values(params), default=str))


def _digest_of(params: object) -> str:
  return hashlib.sha256(json.dumps(_noted(params), sort_keys=True).encode()).hexdigest()


def _checkpoints(folder: str) -> list[str]:
  """The paths of the checkpoints of Hugging Face's in a folder that are complete, oldest first."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  steps = {int(match[1]): name for name in names if (match := _CHECKPOINT.fullmatch(name))}
  paths = [os.path.join(folder, steps[step]) for step in sorted(steps)]
  return [path for path in paths if os.path.exists(os.path.join(path, _STATE))]
