"""The parameters of a script: the variables that it finds set, and the fields that they come from."""

from collections.abc import Collection, Iterator
import keyword
from typing import Any, NamedTuple

from . import source

CALLBACK, RESUME, OUTPUT_DIR = 'callback', 'RESUME', 'OUTPUT_DIR'
DEFINED = ('model', 'tokenizer', 'trainer')


class Parameter(NamedTuple):
  """One parameter.

  Attributes:
    name: for `--set`.
    path: the dotted path of its field.
    variables: the names under which a script may read it.
  """

  name: str
  path: str
  variables: tuple[str, ...]


def _of_task(name: str, *others: str) -> Parameter:
  return Parameter(name, f'task.{name}', (name.upper(), *others))


# DeepExtension's parameters, in the order of its template.
PARAMETERS = (
  _of_task('model_path'),
  _of_task('max_seq_length'),
  _of_task('lora_rank'),
  _of_task('load_in_4bit'),
  _of_task('dataset_path'),
  _of_task('max_input_length'),
  _of_task('max_content_length'),
  _of_task('max_samples'),
  _of_task('num_generations'),
  _of_task('max_grad_norm'),
  _of_task('batch_size'),
  _of_task('grad_accum_steps'),
  _of_task('learning_rate'),
  _of_task('warmup_steps'),
  _of_task('prompt_input_column', 'PromptInputColumn', 'InputTrainName'),
  _of_task('prompt_output_column', 'PromptOutputColumn', 'OutputTrainName'),
  Parameter('max_steps', 'trainer.train_steps', ('MAX_STEPS',)),
)
# The optional variables of a script.
_OPTIONAL = (
  Parameter('output_dir', 'task.output_dir', (OUTPUT_DIR,)),
  Parameter('seed', 'runtime.seed', ('SEED',)),
)
OWN = 'task.parameters'


def _value(params: object, path: str) -> Any:
  for part in path.split('.'):
    params = getattr(params, part)
  return params


def _own(params: Any) -> dict[str, Any]:
  return params.task.parameters.as_dict()


def values(params: object) -> dict[str, Any]:
  """The values of all parameters by their names for `--set`, but for the folder of the result.

  Args:
    params: the experiment.
  """
  named = [parameter for parameter in (*PARAMETERS, *_OPTIONAL) if parameter.variables != (OUTPUT_DIR,)]
  found = {parameter.name: _value(params, parameter.path) for parameter in named}
  return {**found, **{f'{OWN}.{name}': value for name, value in _own(params).items()}}


def variables(params: Any) -> dict[str, Any]:
  """The variables that a script finds set, but for the callback, RESUME and OUTPUT_DIR.

  Args:
    params: the experiment.
  """
  found: dict[str, object] = {}
  for parameter in (*PARAMETERS, *_OPTIONAL):
    found.update(dict.fromkeys(parameter.variables, _value(params, parameter.path)))
  found.pop(OUTPUT_DIR)
  return {**found, **{name.upper(): value for name, value in _own(params).items()}}


def unread(script: source.Script) -> dict[str, str]:
  """The parameters that a script never reads: the dotted path of each -> why it is of no use."""
  return {
    parameter.path: f'{script.path} never reads {parameter.variables[0]}'
    for parameter in PARAMETERS
    if not any(map(script.reads, parameter.variables))
  }


def unset(script: source.Script, params: object) -> list[str]:
  """The dotted paths of custom parameters that a script reads, and that are not set: TEMPERATURE, ..."""
  known = {*variables(params), OUTPUT_DIR, RESUME}
  names = sorted(name for name in script.unset_names() if name.isupper() and name not in known)
  return [f'{OWN}.{name.lower()}' for name in names]


def mistakes(script: source.Script, params: object, defaults: object, given: Collection[str]) -> Iterator[str]:
  """The errors of a script and its parameters, a line for each.

  Args:
    script: the script.
    params: the experiment.
    defaults: the experiment with its defaults.
    given: the dotted paths of the fields that the command line names.
  """
  own = _own(params)
  for name in own:
    if not name.isidentifier() or keyword.iskeyword(name.upper()) or name.upper() in variables(defaults):
      yield f'{OWN}.{name}: cannot be the name of a custom parameter; choose another name'
  is_set = lambda path: path in given or _value(params, path) != _value(defaults, path)
  known = [(parameter.name, parameter.variables, is_set(parameter.path)) for parameter in PARAMETERS]
  known += [(f'{OWN}.{name}', (name.upper(),), True) for name in own]
  for name, read_as, must_be_read in known:
    if must_be_read and not any(map(script.reads, read_as)):
      yield f'{name}: {script.path} never reads {read_as[0]}'
  given_variables = [*variables(params), OUTPUT_DIR, RESUME, CALLBACK]
  for variable in given_variables:
    line = script.line_that_replaces(variable)
    if line is not None:
      yield f'script: {script.path}:{line}: replaces {variable}, which the script is given; remove the line'
  if not script.reads(CALLBACK):
    yield (
      f'script: {script.path}: never reads `{CALLBACK}`, so its training cannot be followed; hand it to '
      'the trainer: callbacks=[callback]'
    )
  missing = [f'`{name}`' for name in DEFINED if not script.sets(name)]
  if missing:
    hint = '; write `tokenizer = None` if there is none' if missing == ['`tokenizer`'] else ''
    yield f'script: {script.path}: sets no {", ".join(missing)}, of which a script sets all three: ' + (
      f'`model`, `tokenizer` and `trainer`{hint}'
    )
  line = script.line_that_calls('trainer', 'train')
  if line is not None:
    yield f'script: {script.path}:{line}: calls trainer.train(), which is done for it, with the saving; remove the line'
