"""The configurations whose runs are killed: every shape of a step, and everything that a checkpoint has to hold."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import pathlib
import tempfile

import portpicker

from tests import train_processes
from tests.model_garden import train_test as model_garden
from tests.soak import processes

_EMA = '--params_override=trainer.optimizer_config.ema.average_decay=0.9'
_TWO = ('--set=runtime.num_virtual_cpus=2',)
_FLOAT16 = ('--set=runtime.mixed_precision_dtype=float16', '--set=runtime.loss_scale=dynamic')


@dataclasses.dataclass(frozen=True)
class Case:
  """One configuration.

  Attributes:
    name: for people.
    flags: of train.py, beside --model_dir.
    num_workers: processes that train together.
    files: called with a folder, writes the data and returns more flags.
    env: added to the environment of its processes.
  """

  name: str
  flags: Sequence[str]
  num_workers: int = 1
  files: Callable[[pathlib.Path], Sequence[str]] | None = None
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def arguments(self, data: pathlib.Path) -> Sequence[str]:
    """The flags of train.py but --model_dir; writes the data into `data` where it needs any."""
    return [*self.flags, *(self.files(data) if self.files else ())]


def _noisy(*flags: str, experiment: str = 'noisy_classifier') -> Sequence[str]:
  return ('--registry=tests.soak.experiments', f'--experiment={experiment}', '--mode=train_and_eval', *flags)


def _model_garden(experiment: str, **changes: Mapping[str, object]) -> Callable[[pathlib.Path], Sequence[str]]:
  def files(folder):
    overrides = model_garden.OVERRIDES[experiment](folder)
    overrides['trainer'].update(
      train_steps=24,
      steps_per_loop=4,
      checkpoint_interval=6,
      validation_interval=8,
      summary_interval=24,
      validation_steps=2,
      max_to_keep=3,
    )
    for name, values in changes.items():
      overrides['task'].setdefault(name, {}).update(values)
    return [f'--params_override={json.dumps(overrides)}']

  return files


# Random crops and flips by stateful ops in a parallel map: only op determinism makes one thread draw them.
_RESNET_AUGMENTED = _model_garden('resnet_imagenet', train_data={'aug_rand_hflip': True, 'seed': 0})

_TINY = (
  '--set=task.model.hidden_size=32',
  '--set=task.model.intermediate_size=64',
  '--set=task.model.num_hidden_layers=1',
  '--set=task.model.residual_dropout=0.1',
)


def _language_model(name: str, experiment: str, *flags: str) -> Case:
  """An experiment that trains a decoder, a tiny one that drops out, for 24 steps. Compiling it is most of its time."""
  lengths = ('train_steps=24', 'steps_per_loop=4', 'checkpoint_interval=6', 'validation_interval=8')
  arguments = (f'--experiment={experiment}', '--mode=train_and_eval', *(f'--set={length}' for length in lengths))
  return Case(name, (*arguments, *_TINY, *flags), env=train_processes.UNOPTIMISED)


def _grpo(name: str, *flags: str) -> Case:
  """GRPO from a base that has learned next to nothing, whose completions differ in whether they end."""
  quick = ('batch_size=4', 'task.pretraining.steps=20', 'reward_funcs=[ended]')
  return _language_model(name, 'grpo', *(f'--set={setting}' for setting in quick), *flags)


CASES = [
  Case('fused', _noisy('--set=runtime.enable_xla=true')),
  Case('split, 2 replicas', _noisy('--set=runtime.enable_xla=true', *_TWO)),
  Case('plain', _noisy('--set=runtime.enable_xla=false')),
  Case('plain, 2 replicas', _noisy('--set=runtime.enable_xla=false', *_TWO)),
  Case('accumulation, fused', _noisy('--set=runtime.enable_xla=true', '--set=grad_accum_steps=2')),
  Case('accumulation, 2 replicas', _noisy('--set=runtime.enable_xla=false', '--set=grad_accum_steps=2', *_TWO)),
  Case('moving average', _noisy('--set=runtime.enable_xla=false', _EMA)),
  Case('float16, moving average', _noisy('--set=runtime.enable_xla=false', _EMA, *_FLOAT16)),
  Case('tf.data', _noisy('--set=runtime.enable_xla=false', experiment='piped_classifier')),
  Case(
    'bert',
    ('--experiment=bert/sentence_prediction', '--mode=train_and_eval', '--set=runtime.enable_xla=false'),
    files=_model_garden('bert/sentence_prediction'),
  ),
  Case(
    'resnet, random crops',
    (
      '--experiment=resnet_imagenet',
      '--mode=train_and_eval',
      '--set=runtime.deterministic=true',
      '--set=runtime.enable_xla=false',
    ),
    files=_RESNET_AUGMENTED,
  ),
  _language_model('sft', 'sft'),
  _language_model('preference, 2 replicas', 'preference', *_TWO),
  _grpo('grpo', '--set=task.losses.grpo.beta=0.1'),
  _grpo('grpo, 2 replicas', '--set=task.num_iterations=2', *_TWO),
  Case('2 workers', _noisy('--set=runtime.enable_xla=false'), num_workers=2),
]
BY_NAME = {case.name: case for case in CASES}


class Runner:
  """Starts the attempts of a case's runs, in processes that are forked or, by default, real ones."""

  def __init__(self, case: Case, folder: pathlib.Path, server: train_processes.Server | None = None):
    """Writes the case's data.

    Args:
      case: the configuration.
      folder: for data and logs.
      server: for processes that are forked; None for real ones.
    """
    self.case, self._folder, self._server = case, folder, server
    folder.mkdir(parents=True, exist_ok=True)
    self._arguments = case.arguments(folder / 'data')

  def start(self, model_dir: pathlib.Path) -> processes.Attempt:
    """Starts the command once."""
    arguments = [*self._arguments, f'--model_dir={model_dir}']
    ports = [portpicker.pick_unused_port() for _ in range(self.case.num_workers)] if self.case.num_workers > 1 else ()
    started = []
    for worker in range(self.case.num_workers):
      env = dict(self.case.env)
      if ports:
        cluster = {'worker': [f'127.0.0.1:{port}' for port in ports]}
        env['TF_CONFIG'] = json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': worker}})
      log = model_dir.with_name(f'{model_dir.name}.{worker}.log')
      if self._server is not None:
        started.append(self._server.start(arguments, log, env=env))
      else:
        started.append(processes.RealProcess(arguments, log, env))
    return processes.Attempt(model_dir, started)

  def log(self, model_dir: pathlib.Path, num_characters: int = 4000) -> str:
    """The end of the output of the attempts in `model_dir`."""
    texts = [
      model_dir.with_name(f'{model_dir.name}.{worker}.log').read_text(errors='replace')[-num_characters:]
      for worker in range(self.case.num_workers)
    ]
    return '\n'.join(texts)

  def straight(self) -> pathlib.Path:
    """The folder of a run that nothing disturbs.

    Raises:
      RuntimeError: it fails.
    """
    folder = self._folder / 'straight'
    if not folder.exists():
      statuses = self.start(folder).wait()
      if any(statuses):
        raise RuntimeError(f'{self.case.name} fails by itself, {statuses}:\n{self.log(folder)}')
    return folder

  def new_folder(self) -> pathlib.Path:
    """A folder for a run that is to be killed."""
    return pathlib.Path(tempfile.mkdtemp(prefix='run-', dir=self._folder)) / 'model'
