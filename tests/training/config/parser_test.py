"""From flags to a configuration: valid flags, refused ones, and the messages."""

import official_ext  # noqa: F401

# isort: split
from collections.abc import Sequence
import dataclasses
import time
import types
from typing import Any

from official.common import registry_imports  # noqa: F401
from official.core import config_definitions as cfg
from official.core import exp_factory
from official.modeling import hyperparams
from official.modeling import optimization
import pytest
import yaml

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import overrides
from official_ext.training.config import parser
from official_ext.training.config import short_names


@dataclasses.dataclass
class Layer(hyperparams.Config):
  width: int = 1
  name: str = ''


@dataclasses.dataclass
class Norm(hyperparams.Config):
  momentum: float = 0.9


@dataclasses.dataclass
class Body(hyperparams.OneOfConfig):
  type: str | None = 'narrow'
  narrow: Layer = dataclasses.field(default_factory=lambda: Layer(width=2))
  wide: Layer = dataclasses.field(default_factory=lambda: Layer(width=20))


@dataclasses.dataclass
class Model(hyperparams.Config):
  """One field of every kind that a configuration can have."""

  body: Body = dataclasses.field(default_factory=Body)
  norm: Norm | None = None
  anything: Any = None
  free: hyperparams.Config = dataclasses.field(default_factory=hyperparams.Config)
  known: hyperparams.Config = dataclasses.field(default_factory=lambda: hyperparams.Config({'depth': 3}))
  table: dict[str, float] = dataclasses.field(default_factory=lambda: {'a': 1.0})
  layers: list[Layer] = dataclasses.field(default_factory=lambda: [Layer(width=1, name='a'), Layer(width=2, name='b')])
  no_layers: tuple[Layer, ...] = ()
  sizes: tuple[int, int] = (3, 4)
  rates: Sequence[float] = (0.5,)
  words: list[str] = dataclasses.field(default_factory=list)
  switch: bool | str = 'auto'
  scale: str | float | None = None
  count: int | None = None
  # Against the hint, as registered experiments have it.
  wrong: float = None  # type: ignore[assignment]


@dataclasses.dataclass
class ParserTask(cfg.TaskConfig):
  model: Model = dataclasses.field(default_factory=Model)
  train_data: definitions.DataConfig = dataclasses.field(
    default_factory=lambda: definitions.DataConfig(global_batch_size=8, is_training=True)
  )
  validation_data: definitions.DataConfig = dataclasses.field(
    default_factory=lambda: definitions.DataConfig(global_batch_size=8, is_training=False)
  )


@exp_factory.register_config_factory('parser_test')
def parser_test() -> cfg.ExperimentConfig:
  return definitions.ExperimentConfig(
    task=ParserTask(),
    trainer=definitions.TrainerConfig(
      train_steps=100,
      optimizer_config=optimization.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw'},
          'learning_rate': {'type': 'cosine', 'cosine': {'initial_learning_rate': 0.1, 'decay_steps': 100}},
        }
      ),
    ),
  )


short_names.register('parser_test', {'width': 'task.model.body.*.width', 'momentum': 'task.model.norm.momentum'})


def parse(experiment='parser_test', mode='train_and_eval', lock=True, **flags):
  """Parses as train.py does: flags that take several values as lists, params_override as text."""
  flags_obj = types.SimpleNamespace(experiment=experiment, mode=mode, **flags)
  return parser.parse_configuration(flags_obj, lock_return=lock, print_return=False)


def write(path, text):
  path.write_text(text)
  return str(path)


TRAINER = 'trainer.optimizer_config'

# Each: the value of --params_override, and the start of the message.
BAD_OVERRIDES = [
  # No such field, at each depth.
  ('trainr: {train_steps: 1}', 'trainr: no such field; did you mean trainer?'),
  ('trainer.train_step=1', 'trainer.train_step: no such field; did you mean trainer.train_steps?'),
  (
    'trainer.nonfinite.max_skip=1',
    'trainer.nonfinite.max_skip: no such field; did you mean trainer.nonfinite.max_skips?',
  ),
  (
    f'{TRAINER}.optimizer.adamw.beta1=1',
    f'{TRAINER}.optimizer.adamw.beta1: no such field; did you mean {TRAINER}.optimizer.adamw.beta_1?',
  ),
  ('train_steps=5', 'train_steps: no such field; did you mean trainer.train_steps?'),
  (
    'trainer.initial_learning_rate=1',
    f'trainer.initial_learning_rate: no such field; did you mean {TRAINER}.learning_rate.cosine.initial_learning_rate?',
  ),
  (
    'trainer.nonfinite.xyz=1',
    'trainer.nonfinite.xyz: no such field; trainer.nonfinite has max_skips, then, max_rollbacks',
  ),
  ('task.model.known.width=1', 'task.model.known.width: no such field'),
  ('task.model.layers.5.width=1', 'task.model.layers.5: no such element, task.model.layers has 2'),
  ('{1: 2}', '1: no such field'),
  ('runtime: {_locked: true}', 'runtime._locked: no such field'),
  ('runtime: {UNREAD_FIELDS: {}}', 'runtime.UNREAD_FIELDS: no such field'),
  # Wrong types.
  ('trainer.train_steps=abc', "trainer.train_steps: expected int, got 'abc' (str)"),
  ('trainer.train_steps=1.5', 'trainer.train_steps: expected int, got 1.5 (float)'),
  ('trainer.train_steps=true', 'trainer.train_steps: expected int, got true'),
  ('trainer.train_steps=1_000', "trainer.train_steps: expected int, got '1_000' (str)"),
  ('trainer.train_steps=', 'trainer.train_steps: expected int, got null'),
  ('trainer.train_steps=.inf', 'trainer.train_steps: expected int, got inf (float)'),
  ('trainer.train_steps=[1]', 'trainer.train_steps: expected int, got the list [1]'),
  ('trainer.train_steps={a: 1}', 'trainer.train_steps: expected int, got a mapping'),
  ('trainer.progress_bar=yes', "trainer.progress_bar: expected bool, got 'yes' (str)"),
  ('trainer.progress_bar=1', 'trainer.progress_bar: expected bool, got 1 (int)'),
  ('{trainer: {progress_bar: "true"}}', "trainer.progress_bar: expected bool, got 'true' (str)"),
  ('trainer.loss_upper_bound=high', "trainer.loss_upper_bound: expected float, got 'high' (str)"),
  ('trainer.loss_upper_bound=false', 'trainer.loss_upper_bound: expected float, got false'),
  ('{task: {init_checkpoint: 5}}', 'task.init_checkpoint: expected str, got 5 (int)'),
  ('task.init_checkpoint=null', 'task.init_checkpoint: expected str, got null'),
  ('trainer=5', 'trainer: expected a mapping (TrainerConfig), got 5 (int)'),
  ('trainer=', 'trainer: expected a mapping (TrainerConfig), got null'),
  ('trainer=[1, 2]', 'trainer: expected a mapping (TrainerConfig), got the list [1, 2]'),
  ('task.model.count=x', "task.model.count: expected int or null, got 'x' (str)"),
  ('{task: {model: {switch: 1}}}', 'task.model.switch: expected bool or str, got 1 (int)'),
  ('{task: {model: {scale: true}}}', 'task.model.scale: expected str or float or null, got true'),
  ('task.model.norm=3', 'task.model.norm: expected a mapping (Norm) or null, got 3 (int)'),
  ('task.model.norm.momentum=a', "task.model.norm.momentum: expected float, got 'a' (str)"),
  ('task.model.sizes=[1]', 'task.model.sizes: expected a list of 2 values (int, int), got 1 values'),
  ('task.model.sizes=[1, a]', "task.model.sizes.1: expected int, got 'a' (str)"),
  ('task.model.sizes=7', 'task.model.sizes: expected a list of 2 values (int, int), got 7 (int)'),
  ('task.model.words=word', "task.model.words: expected a list of str, got 'word' (str)"),
  ('task.model.words=[a, 1]', 'task.model.words.1: expected str, got 1 (int)'),
  ('task.model.anything=[[1]]', 'task.model.anything: a list holds either scalars or mappings'),
  ('task.model.anything=[1, {a: 2}]', 'task.model.anything: a list holds either scalars or mappings'),
  (
    'task.model.layers=[{width: 1}, {widht: 2}]',
    'task.model.layers.1.widht: no such field; did you mean task.model.layers.1.width?',
  ),
  ('task.model.layers=[1, 2]', 'task.model.layers.0: expected a mapping (Layer), got 1 (int)'),
  ('task.model.table.b=x', "task.model.table.b: expected float, got 'x' (str)"),
  # Fields that nothing reads.
  ('runtime.worker_hosts=a', 'runtime.worker_hosts: nothing reads this field: set the environment variable TF_CONFIG'),
  ('runtime.run_eagerly=true', 'runtime.run_eagerly: nothing reads this field: set trainer.train_tf_function=false'),
  ('task.train_data.cache=true', 'task.train_data.cache: nothing reads this field'),
  (
    f'{TRAINER}.optimizer.sgd.momentum=0.9',
    f"{TRAINER}.optimizer.sgd: nothing reads this field while {TRAINER}.optimizer.type is 'adamw' (str)",
  ),
  (f'{TRAINER}.optimizer.type=adamm', f"{TRAINER}.optimizer.type: 'adamm' is not one of sgd, sgd_experimental, adam, "),
  ('task.model.body.type=""', "task.model.body.type: '' is not one of narrow, wide"),
  # Ranges, choices, combinations.
  ('trainer.train_steps=0', 'trainer.train_steps: is 0, and mode train_and_eval trains'),
  ('trainer.train_steps=-1', 'trainer.train_steps: expected at least 0, got -1'),
  ('trainer.train_epochs=-0.5', 'trainer.train_epochs: expected at least 0, got -0.5'),
  ('trainer.train_epochs=.nan', 'trainer.train_epochs: expected at least 0, got nan'),
  ('trainer.train_steps=5,trainer.train_epochs=2', 'trainer.train_epochs: set either trainer.train_steps (5) or'),
  ('trainer.checkpoint_interval=0', 'trainer.checkpoint_interval: expected at least 1, got 0'),
  ('trainer.summary_interval=0', 'trainer.summary_interval: expected at least 1, got 0'),
  ('trainer.steps_per_loop=0', 'trainer.steps_per_loop: expected at least 1, got 0'),
  ('trainer.max_to_keep=0', 'trainer.max_to_keep: expected at least 1, got 0'),
  ('trainer.validation_interval=0', 'trainer.validation_interval: expected at least 1, got 0'),
  ('trainer.validation_steps=0', 'trainer.validation_steps: expected a number above 0, or -1 for all, got 0'),
  ('trainer.validation_steps=-2', 'trainer.validation_steps: expected a number above 0, or -1 for all, got -2'),
  ('trainer.gradient_accumulation_steps=0', 'trainer.gradient_accumulation_steps: expected at least 1, got 0'),
  ('trainer.steps_per_execution=-1', 'trainer.steps_per_execution: expected at least 0, got -1'),
  ('trainer.nonfinite.max_skips=-1', 'trainer.nonfinite.max_skips: expected at least 0, got -1'),
  ('trainer.nonfinite.then=quit', "trainer.nonfinite.then: 'quit' is not one of stop, rollback"),
  (
    'trainer.best_checkpoint_metric_comp=max',
    "trainer.best_checkpoint_metric_comp: 'max' is not one of auto, higher, lower",
  ),
  ('trainer.best_checkpoint_eval_metric=acc', 'trainer.best_checkpoint_export_subdir: must be set too, as'),
  ('trainer.best_checkpoint_export_subdir=best', 'trainer.best_checkpoint_eval_metric: must be set too, as'),
  (
    'runtime.distribution_strategy=mirored',
    "runtime.distribution_strategy: 'mirored' is not one of auto, tpu, mirrored, one_device, multi_worker_mirrored, "
    'parameter_server, off; did you mean mirrored?',
  ),
  ('runtime.enable_xla=maybe', "runtime.enable_xla: 'maybe' is not one of true, false, auto"),
  ('runtime.mixed_precision_dtype=fp16', "runtime.mixed_precision_dtype: 'fp16' is not one of null, auto, float32,"),
  ('runtime.loss_scale=-2', "runtime.loss_scale: expected null, 'dynamic' or a number above 0, got -2.0"),
  ('runtime.num_gpus=-1', 'runtime.num_gpus: expected at least 0, got -1'),
  ('runtime.seed=-1', 'runtime.seed: expected 0 to 4294967295, got -1'),
  ('runtime.seed=4294967296', 'runtime.seed: expected 0 to 4294967295, got 4294967296'),
  ('task.train_data.global_batch_size=0', 'task.train_data.global_batch_size: expected at least 1, got 0'),
  ('task.validation_data.global_batch_size=-8', 'task.validation_data.global_batch_size: expected at least 1, got -8'),
  # Not an override at all.
  ('trainer: {train_steps: 1', '--params_override: malformed YAML: '),
  ('trainer: train_steps: 1', '--params_override: malformed YAML: mapping values are not allowed here in line 1'),
  ('{trainer: {train_steps: 1}, trainer: {}}', '--params_override: the key trainer stands twice, in lines 1 and 1'),
  ('trainer.train_steps=1,trainer.train_steps=2', 'trainer.train_steps: given twice in --params_override'),
  ('trainer=1,trainer.train_steps=2', 'trainer.train_steps: given twice in --params_override'),
  ('trainer.train_steps=1,nonsense', "--params_override: expected name=value, got 'nonsense'"),
  ('{task: {model: {anything: &a {b: *a}}}}', '--params_override: an alias is inside its own anchor'),
  ('task.model.sizes[1]=2', 'task.model.sizes: all elements from [0] on must be given, got [1]'),
  ('[1, 2]', '--params_override: expected a mapping from fields to values, got [1, 2]'),
  ('17', '--params_override: expected a mapping from fields to values, got 17'),
  (
    'no_such_file.yaml',
    '--params_override=no_such_file.yaml: neither a.b=1,c.d=2 nor a YAML mapping, and no such file',
  ),
  ('{a: !!bool maybe}', "--params_override: malformed YAML: 'maybe' is not a valid bool in line 1, column 5"),
  ('{a: !!int abc}', "--params_override: malformed YAML: 'abc' is not a valid int"),
  ('{a: !!float abc}', "--params_override: malformed YAML: 'abc' is not a valid float"),
  ('{a: !!null abc}', "--params_override: malformed YAML: 'abc' is not a valid null"),
  ('{a: !!timestamp x}', '--params_override: malformed YAML: could not determine a constructor'),
  ('{a: !!binary "***"}', '--params_override: malformed YAML: could not determine a constructor'),
  ('{a: !!set {b}}', '--params_override: malformed YAML: could not determine a constructor'),
  ('{a: !!python/tuple 5}', '--params_override: malformed YAML: expected a sequence node'),
  ('{a: ' + '9' * 5000 + '}', '--params_override: malformed YAML: an integer of 5000 digits'),
  ('trainer.train_steps=' + '9' * 5000, "trainer.train_steps: expected int, got '9999"),
  (
    'trainer.train_steps=999999999999999999999999999999',
    'trainer.train_steps: 999999999999999999999999999999 does not fit into an integer of 64 bits',
  ),
  ('trainer.train_steps=9223372036854775808', 'trainer.train_steps: 9223372036854775808 does not fit'),
  ('trainer.train_steps=-9223372036854775809', 'trainer.train_steps: -9223372036854775809 does not fit'),
  ('trainer.train_steps=1e300', 'trainer.train_steps: an integer of 997 bits does not fit'),
  (
    'trainer.loss_upper_bound=' + '9' * 400 + ',trainer.train_epochs=1e999',
    'trainer.train_epochs: expected a finite number, at least 0, got inf',
  ),
  ('task.model.anything=[1, 9223372036854775808]', 'task.model.anything.1: 9223372036854775808 does not fit'),
  ('task.model.free.a=9223372036854775808', 'task.model.free.a: 9223372036854775808 does not fit'),
  ('[' * 3000 + ']' * 3000, '--params_override: malformed YAML: nested more than 100 deep'),
  ('{a: ' * 3000, '--params_override: malformed YAML: nested more than 100 deep'),
  ('task.model.free' + '.a' * 3000 + '=1', "--params_override: 'task.model.free.a.a."),
  # Ranges: see ranges_test.py.
  (
    f'{TRAINER}.learning_rate.cosine.initial_learning_rate=-1',
    f'{TRAINER}.learning_rate.cosine.initial_learning_rate: expected at least 0, got -1.0',
  ),
  ('trainer.keep_every=-5', 'trainer.keep_every: expected at least 0, got -5'),
  ('trainer.best_checkpoints_to_keep=0', 'trainer.best_checkpoints_to_keep: expected at least 1, got 0'),
  ('trainer.validation_summary_subdir=../../x', "trainer.validation_summary_subdir: '../../x' is not a plain name"),
  ('!!python/object/apply:os.getcwd []', '--params_override: malformed YAML: could not determine a constructor'),
]


@pytest.mark.parametrize('text, start', BAD_OVERRIDES, ids=[text[:50] for text, _ in BAD_OVERRIDES])
def test_bad_override_is_one_line_that_names_the_field(text, start):
  # Stock: "NotFoundError: No such file" for what is malformed; takes worker_hosts, which nothing reads, and
  # train_steps=0.
  with pytest.raises(errors.UserError) as info:
    parse(params_override=text)
  assert str(info.value).startswith(start)
  assert '\n' not in str(info.value)


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path):
  # 9**10 values. Before: minutes, and all memory.
  lines = ['a0: &a0 [x, x, x, x, x, x, x, x, x]']
  lines += [f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 9)}]' for n in range(1, 10)]
  began = time.process_time()
  with pytest.raises(errors.UserError) as info:
    parse(config_file=[write(tmp_path / 'bomb.yaml', '\n'.join(lines))])
  assert str(info.value) == f'--config_file={tmp_path}/bomb.yaml: aliases make more than 1000000 values of it'
  assert time.process_time() - began < 2
  # Aliases of short values are the purpose of aliases in YAML.
  harmless = 'x: &x {max_skips: 3}\ntrainer: {nonfinite: *x}'
  with pytest.raises(errors.UserError, match=r'^x: no such field'):
    parse(config_file=[write(tmp_path / 'alias.yaml', harmless)])
  assert parse(params_override='{trainer: {max_to_keep: &n 7, keep_every: *n}}').trainer.keep_every == 7


def test_a_file_without_an_end_is_refused():
  with pytest.raises(errors.UserError, match='^--config_file=/dev/zero: is larger than 38 MB; expected a YAML file$'):
    parse(config_file=['/dev/zero'])


def test_all_mistakes_of_one_part_are_reported_at_once():
  # Before: the first of each part.
  settings = {
    'runtime.distribution_strategy': 'mirored',
    'runtime.mixed_precision_dtype': 'float8',
    'trainer.validation_steps': '0',
    'trainer.train_steps': '0',
    'trainer.optimizer_config.learning_rate': '{type: stepwise, stepwise: {boundaries: [3, 2], values: [0.1, 0.1]}}',
    'trainer.optimizer_config.parameter_groups': '[{patterns: ["("]}, {learning_rate_scale: 0.5}]',
  }
  with pytest.raises(errors.UserError) as info:
    parse(mode='train', set=[f'{name}={value}' for name, value in settings.items()])
  named = [line.partition(': ')[0].removeprefix('trainer.optimizer_config.') for line in errors.lines_of(info.value)]
  assert sorted(named) == [
    'learning_rate.stepwise.boundaries',
    'parameter_groups.0.patterns.0',
    'parameter_groups.1.patterns',
    'runtime.distribution_strategy',
    'runtime.mixed_precision_dtype',
    'trainer.train_steps',
    'trainer.validation_steps',
  ]


def test_all_short_names_with_mistakes_are_reported_at_once():
  # Before: the first unknown short name hid the others.
  with pytest.raises(errors.UserErrors) as info:
    parse(set=['learning_rat=1', 'batchsize=2', 'train_steps=abc', 'trainer.train_step=4'])
  assert [line.partition(';')[0] for line in info.value.lines] == [
    'trainer.train_step: no such field',
    'learning_rat: no such field or short name',
    'batchsize: no such field or short name',
    "trainer.train_steps: expected int, got 'abc' (str)",
  ]


def test_all_mistakes_are_reported_at_once(tmp_path):
  file = write(tmp_path / 'c.yaml', 'trainer: {train_stps: 5, max_to_keep: x}\nruntime: {seeed: 1}')
  with pytest.raises(errors.UserErrors) as info:
    parse(
      config_file=[file, str(tmp_path / 'no.yaml')],
      params_override='trainer.summary_interval=a,task.nothing=1',
      set=['optimizer=adamm', 'learning_rate=-1', 'batchsize=4', 'trainer.keep_every=-5', 'train_steps'],
    )
  assert [line.split(': ')[0] for line in info.value.lines] == [
    'trainer.train_stps',
    'trainer.max_to_keep',
    'runtime.seeed',
    f'--config_file={tmp_path}/no.yaml',
    'trainer.summary_interval',
    'task.nothing',
    '--set=train_steps',
    f'{TRAINER}.optimizer.type',
    'batchsize',
    f'{TRAINER}.learning_rate.cosine.initial_learning_rate',
    'trainer.keep_every',
  ]
  assert [line.endswith(f' (in {file})') for line in info.value.lines] == [True] * 3 + [False] * 8
  assert all('\n' not in line for line in info.value.lines)


BAD_SETS = [
  (['trainer.train_steps'], '--set=trainer.train_steps: expected --set=NAME=VALUE'),
  (['=5'], '--set==5: expected --set=NAME=VALUE'),
  (['trainer.train_steps=1', 'trainer.train_steps=2'], 'trainer.train_steps: given twice in --set'),
  (['train_steps=1', 'train_steps=1'], 'train_steps: given twice in --set'),
  (
    ['train_steps=1', 'trainer.train_steps=2'],
    'trainer.train_steps: given twice in --set, once by the short name train_steps',
  ),
  (['train_steps=1', 'train_epochs=2'], 'trainer.train_epochs: set either'),
  (['learning_rat=1'], 'learning_rat: no such field or short name; did you mean learning_rate?'),
  (['zzz=1'], 'zzz: no such field or short name; the short names are optimizer, '),
  (['train_steps=abc'], "trainer.train_steps: expected int, got 'abc' (str)"),
  (['trainer.train_step=abc'], 'trainer.train_step: no such field; did you mean trainer.train_steps?'),
  (['trainer.=1'], 'trainer.: no such field'),
  (['warmup_steps=5'], f'warmup_steps: this experiment has no such field: {TRAINER}.warmup.type is null'),
  (
    ['schedule=stepwise', 'learning_rate=1'],
    f'learning_rate: this experiment has no such field: {TRAINER}.learning_rate.stepwise has name, boundaries, ',
  ),
  (['batch_size=[1'], '--set=batch_size: malformed YAML'),
]


@pytest.mark.parametrize('values, start', BAD_SETS, ids=[' '.join(values) for values, _ in BAD_SETS])
def test_bad_set_is_one_line_that_names_the_field(values, start):
  # Stock: has no dotted paths; `train_steps=abc` is accepted.
  with pytest.raises(errors.UserError) as info:
    parse(set=values)
  assert str(info.value).startswith(start)
  assert '\n' not in str(info.value)


def test_bad_files(tmp_path):
  cases = {
    'missing.yaml': (None, ': no such file'),
    'folder': ('', ': cannot be read: it is a directory'),
    'malformed.yaml': ('a: [1', ": malformed YAML: expected ',' or ']', but got '<stream end>' in line 1, column 6"),
    'twice.yaml': ('runtime:\n  seed: 1\n  seed: 2\n', ': the key seed stands twice, in lines 2 and 3'),
    'list.yaml': ('- 1\n- 2\n', ': expected a mapping from fields to values, got [1, 2]'),
    'text.yaml': ('hello', ": expected a mapping from fields to values, got 'hello'"),
  }
  for name, (text, end) in cases.items():
    path = tmp_path / name
    if name == 'folder':
      path.mkdir()
    elif text is not None:
      path.write_text(text)
    with pytest.raises(errors.UserError) as info:
      parse(config_file=[str(path)])
    assert str(info.value) == f'--config_file={path}{end}'
  binary = tmp_path / 'binary.yaml'
  binary.write_bytes(b'\xff\xfe\x00\x81')
  with pytest.raises(errors.UserError, match='binary.yaml: cannot be read: '):
    parse(config_file=[str(binary)])
  field = write(tmp_path / 'field.yaml', 'trainer: {train_step: 5}')
  with pytest.raises(errors.UserError) as info:
    parse(config_file=[field])
  assert str(info.value) == f'trainer.train_step: no such field; did you mean trainer.train_steps? (in {field})'


@pytest.mark.parametrize(
  'name, near',
  [
    ('parser_tset', 'did you mean parser_test'),
    ('resnet_imagnet', 'did you mean resnet_imagenet'),
    ('bert', 'did you mean '),
    ('zzzzzz', 'no such experiment; --registry=MODULE imports experiments that registry_imports.py does not; `'),
    ('bert/squad/x', 'bert/squad'),
  ],
)
def test_unknown_experiment_names_what_is_near_and_where_experiments_come_from(name, near):
  # Stock: names no alternative.
  with pytest.raises(errors.UserError) as info:
    parse(name)
  assert str(info.value).startswith(f'--experiment={name}: no such experiment; ')
  assert near in str(info.value) and 'registry_imports.py' in str(info.value) and '--registry' in str(info.value)


def test_no_experiment():
  with pytest.raises(errors.UserError, match='--experiment: must be given'):
    parse(None)


GOOD_OVERRIDES = [
  ('trainer.train_steps=1e3', 'trainer.train_steps', 1000),
  ('trainer.train_steps=0x10', 'trainer.train_steps', 16),
  ('trainer.train_steps=010', 'trainer.train_steps', 10),
  ('trainer.loss_upper_bound=1.5e3', 'trainer.loss_upper_bound', 1500.0),
  ('trainer.loss_upper_bound=2', 'trainer.loss_upper_bound', 2.0),
  ('trainer.loss_upper_bound=1e-5', 'trainer.loss_upper_bound', 1e-5),
  ('trainer.loss_upper_bound=.inf', 'trainer.loss_upper_bound', float('inf')),
  ('trainer.progress_bar=false', 'trainer.progress_bar', False),
  ('trainer.progress_bar=TRUE', 'trainer.progress_bar', True),
  ('task.init_checkpoint=', 'task.init_checkpoint', ''),
  ('task.init_checkpoint=123', 'task.init_checkpoint', '123'),
  ('task.init_checkpoint=1.10', 'task.init_checkpoint', '1.10'),
  ('task.init_checkpoint=gs://bucket/a', 'task.init_checkpoint', 'gs://bucket/a'),
  ('task.init_checkpoint=*.ckpt', 'task.init_checkpoint', '*.ckpt'),
  ('task.init_checkpoint=a: b', 'task.init_checkpoint', 'a: b'),
  ('task.init_checkpoint=#5', 'task.init_checkpoint', '#5'),
  ("task.init_checkpoint='a, b'", 'task.init_checkpoint', 'a, b'),
  ('{"task": {"init_checkpoint": "a=b"}}', 'task.init_checkpoint', 'a=b'),
  ('runtime.enable_xla=true', 'runtime.enable_xla', True),
  ('runtime.enable_xla=auto', 'runtime.enable_xla', 'auto'),
  ('runtime.mixed_precision_dtype=~', 'runtime.mixed_precision_dtype', None),
  ('runtime.loss_scale=128', 'runtime.loss_scale', 128.0),
  ('runtime.loss_scale=dynamic', 'runtime.loss_scale', 'dynamic'),
  ('task.train_data.input_path=[a, b]', 'task.train_data.input_path', ['a', 'b']),
  ('task.train_data.input_path=a', 'task.train_data.input_path', 'a'),
  ('task.train_data.input_path.x=a,task.train_data.input_path.y=b', 'task.train_data.input_path', {'x': 'a', 'y': 'b'}),
  ('task.train_data.tfds_name=x', 'task.train_data.tfds_name', 'x'),
  ('task.model.body.type=wide', 'task.model.body', {'type': 'wide', 'wide': {'width': 20, 'name': ''}}),
  ('task.model.body.wide.width=5,task.model.body.type=wide', 'task.model.body.wide', {'width': 5, 'name': ''}),
  ('task.model.norm={}', 'task.model.norm', {'momentum': 0.9}),
  ('task.model.norm.momentum=1', 'task.model.norm', {'momentum': 1.0}),
  ('task.model.norm=null', 'task.model.norm', None),
  ('task.model.anything=x', 'task.model.anything', 'x'),
  ('task.model.anything=0.5', 'task.model.anything', 0.5),
  ('task.model.anything=[1, 2]', 'task.model.anything', [1, 2]),
  ('task.model.anything={a: {b: 1}}', 'task.model.anything', {'a': {'b': 1}}),
  ('task.model.anything.a.b=1', 'task.model.anything', {'a': {'b': 1}}),
  ('task.model.free.a=1', 'task.model.free', {'a': 1}),
  ('task.model.known.depth=4', 'task.model.known', {'depth': 4}),
  ('task.model.table.b=2', 'task.model.table', {'a': 1.0, 'b': 2.0}),
  ('task.model.layers=[{width: 9}, {}]', 'task.model.layers', [{'width': 9, 'name': 'a'}, {'width': 2, 'name': 'b'}]),
  ('task.model.layers=[{width: 9}]', 'task.model.layers', [{'width': 9, 'name': ''}]),
  ('task.model.layers=[]', 'task.model.layers', []),
  ('task.model.layers.1.width=9', 'task.model.layers', [{'width': 1, 'name': 'a'}, {'width': 9, 'name': 'b'}]),
  ('task.model.no_layers=[{width: 4}]', 'task.model.no_layers', ({'width': 4, 'name': ''},)),
  ('task.model.sizes=[1, 2e0]', 'task.model.sizes', (1, 2)),
  ('task.model.sizes[0]=7,task.model.sizes[1]=8', 'task.model.sizes', (7, 8)),
  ('task.model.rates=[1, 2.5, 3]', 'task.model.rates', (1.0, 2.5, 3.0)),
  ('task.model.words=[yes, "1"]', 'task.model.words', ['yes', '1']),
  ('task.model.switch=true', 'task.model.switch', True),
  ('task.model.switch=on', 'task.model.switch', 'on'),
  ('task.model.scale=3', 'task.model.scale', 3.0),
  ('task.model.wrong=null', 'task.model.wrong', None),
  ('task.model.wrong=1', 'task.model.wrong', 1.0),
  ('runtime.worker_hosts=null', 'runtime.worker_hosts', None),
]


def exported(params, path):
  value: Any = params.as_dict()
  for name in path.split('.'):
    value = value[name]
  return value


@pytest.mark.parametrize('text, path, expected', GOOD_OVERRIDES, ids=[case[0][:50] for case in GOOD_OVERRIDES])
def test_override_arrives_with_its_type_and_survives_a_file(text, path, expected, tmp_path):
  # Stock: `loss_upper_bound=1.5e3` becomes the string '1.5e3'.
  params = parse(params_override=text)
  # repr: 1 is not 1.0, True is not 1.
  assert repr(exported(params, path)) == repr(expected)
  again = parse(config_file=[write(tmp_path / 'params.yaml', config_text.dump(params.as_dict()))])
  assert repr(again.as_dict()) == repr(params.as_dict())


def test_a_mapping_becomes_the_annotated_class():
  params = parse(params_override='task.model.norm.momentum=0.5,task.model.no_layers=[{width: 4}]')
  assert type(params.task.model.norm) is Norm
  assert type(params.task.model.no_layers[0]) is Layer


def test_later_sources_win(tmp_path):
  first = 'trainer: {train_steps: 1, max_to_keep: 1, summary_interval: 1, steps_per_loop: 1}'
  first = write(tmp_path / 'first.yaml', first)
  second = write(tmp_path / 'second.yaml', 'trainer: {max_to_keep: 2, summary_interval: 2, steps_per_loop: 2}')
  params = parse(
    config_file=[first, second],
    params_override='trainer.summary_interval=3,trainer.steps_per_loop=3',
    set=['steps_per_loop=4'],
  )
  trainer = params.trainer
  assert (trainer.train_steps, trainer.max_to_keep, trainer.summary_interval, trainer.steps_per_loop) == (1, 2, 3, 4)


def test_params_override_may_name_a_file(tmp_path):
  assert parse(params_override=write(tmp_path / 'o.yaml', 'trainer: {max_to_keep: 2}')).trainer.max_to_keep == 2
  assert parse(config_file=[write(tmp_path / 'empty.yaml', '')]).trainer.train_steps == 100


def test_the_length_that_is_set_last_replaces_the_other(tmp_path):
  params = parse(set=['train_epochs=2'])
  assert (params.trainer.train_steps, params.trainer.train_epochs) == (0, 2.0)
  saved = write(tmp_path / 'params.yaml', config_text.dump(params.as_dict()))
  assert parse(config_file=[saved]).trainer.train_epochs == 2.0
  params = parse(config_file=[saved], set=['train_steps=5'])
  assert (params.trainer.train_steps, params.trainer.train_epochs) == (5, 0.0)


def test_checks_of_one_mode_do_not_concern_another():
  assert parse(mode='eval', params_override='trainer.train_steps=0').trainer.train_steps == 0
  assert parse(mode='train', params_override='trainer.validation_interval=0').trainer.validation_interval == 0
  assert parse(mode='train', params_override='task.validation_data.global_batch_size=0')
  assert parse(mode=None, params_override='trainer.train_steps=0,task.train_data.global_batch_size=0')


def test_seed_fills_in_what_is_unset():
  assert parse().task.train_data.seed == 0
  params = parse(set=['seed=5'])
  assert (params.task.train_data.seed, params.task.train_data.deterministic) == (5, True)
  params = parse(params_override='runtime.seed=5,task.train_data.seed=7,task.train_data.deterministic=false')
  assert (params.task.train_data.seed, params.task.train_data.deterministic) == (7, False)
  assert parse('resnet_imagenet', set=['seed=3']).task.train_data.seed == 3


def test_short_names_follow_the_selected_alternatives():
  params = parse(set=['learning_rate=0.5', 'max_grad_norm=2', 'weight_decay=0.01', 'batch_size=16'])
  assert params.trainer.optimizer_config.learning_rate.cosine.initial_learning_rate == 0.5
  # The legacy AdamW clips by a separate field.
  adamw = params.trainer.optimizer_config.optimizer.adamw
  assert (adamw.gradient_clip_norm, adamw.global_clipnorm, adamw.weight_decay_rate) == (2.0, None, 0.01)
  assert params.task.train_data.global_batch_size == 16
  # In any order.
  params = parse(set=['max_grad_norm=2', 'learning_rate=0.5', 'schedule=constant', 'optimizer=adamw_experimental'])
  assert params.trainer.optimizer_config.learning_rate.constant.learning_rate == 0.5
  assert params.trainer.optimizer_config.optimizer.adamw_experimental.global_clipnorm == 2.0
  params = parse(set=['optimizer=lion', f'{TRAINER}.optimizer.lion.beta_1=0.8', 'beta_2=0.7'])
  lion = params.trainer.optimizer_config.optimizer.lion
  assert (params.trainer.optimizer_config.optimizer.type, lion.beta_1, lion.beta_2) == ('lion', 0.8, 0.7)
  params = parse(set=['warmup_steps=7', f'{TRAINER}.warmup.type=linear'])
  assert params.trainer.optimizer_config.warmup.linear.warmup_steps == 7


def test_short_names_of_an_experiment_win_over_the_standard_ones():
  assert parse(set=['width=33']).task.model.body.narrow.width == 33
  with pytest.raises(errors.UserError, match='momentum: this experiment has no such field: task.model.norm is null'):
    parse(set=['momentum=0.5'])
  assert parse(set=['momentum=0.5', 'task.model.norm={}']).task.model.norm.momentum == 0.5
  with pytest.raises(ValueError, match='registered twice'):
    short_names.register('parser_test', {'width': 'task.model.body.*.width'})
  with pytest.raises(errors.UserError, match='width: no such field or short name'):
    parse('mock', set=['width=33'])


def test_flags_reach_their_fields_and_unset_ones_change_nothing(tmp_path):
  file = write(tmp_path / 'tpu.yaml', 'runtime: {tpu: from_file}')
  assert parse(config_file=[file], tpu=None).runtime.tpu == 'from_file'
  assert parse(config_file=[file], tpu='from_flag').runtime.tpu == 'from_flag'
  enabled = ['task.train_data.enable_tf_data_service=true']
  params = parse('resnet_imagenet', tf_data_service='grpc://host:5', set=enabled)
  assert params.task.train_data.tf_data_service_address == 'grpc://host:5'
  assert params.task.validation_data.tf_data_service_address == 'grpc://host:5'
  params = parse(tf_data_service='grpc://host:5', set=enabled)
  assert params.task.train_data.tf_data_service_address == 'grpc://host:5'


def test_a_tf_data_service_that_nothing_reads_from_is_refused():
  how = '--set=task.train_data.enable_tf_data_service=true as well, or leave it out'
  with pytest.raises(errors.UserError, match=f'^--tf_data_service: nothing is read from there; give {how}$'):
    parse('resnet_imagenet', tf_data_service='grpc://host:5')
  with pytest.raises(errors.UserError, match=f'^--tf_data_service: nothing is read from there; give {how}$'):
    parse(tf_data_service='grpc://host:5')
  enabled = ['task.train_data.enable_tf_data_service=true']
  with pytest.raises(errors.UserError, match='^task.train_data.enable_tf_data_service: needs an address; give --tf_'):
    parse(set=enabled)
  with pytest.raises(errors.UserError, match='^task.train_data.tf_data_service_address: expected grpc://'):
    parse(set=enabled, tf_data_service='host:5')
  with pytest.raises(errors.UserError, match='^--tf_data_service: this experiment has no data that could come from'):
    checks.check_data_service(types.SimpleNamespace(task=types.SimpleNamespace()))


def test_the_result_is_locked_and_every_parse_is_a_new_one():
  params = parse()
  with pytest.raises(ValueError, match='locked'):
    params.task.train_data.global_batch_size = 5
  unlocked = parse(lock=False)
  unlocked.task.model.layers[0].width = 5
  assert parse().task.model.layers[0].width == 1


def test_pyyaml_is_left_as_it_is():
  # Stock: importing it changes PyYAML's FullLoader for the whole process.
  assert yaml.safe_load('yes') is True and yaml.safe_load('010') == 8


def test_merge_keys_as_model_garden_reads_them(tmp_path):
  # The second mapping is merged before its own merge is done; a list of mappings, of which the first one counts.
  text = 'a: {<<: &b {<<: &c {x: 1, y: 2}, x: 3}, z: 4}\nd: {<<: [*c, *b], y: 5}\ne: *b\nf: "<<"\ng: <<\n'
  read = config_text.load(text, 'test')
  assert read.pop('g') == '<<'  # Model Garden's reader fails here.
  assert read == yaml.load(text.replace('g: <<\n', ''), Loader=yaml.FullLoader)
  assert read['a'] == {'x': 3, 'y': 2, 'z': 4} and read['d'] == {'x': 1, 'y': 5}
  assert config_text.load(config_text.dump(read), 'test') == read
  with pytest.raises(errors.UserError, match='^test: the key x stands twice, in lines 1 and 2$'):
    config_text.load('{<<: {x: 1,\nx: 2}}', 'test')
  with pytest.raises(errors.UserError, match='^test: malformed YAML: expected a mapping'):
    config_text.load('{<<: 3}', 'test')


def test_integers_that_versions_of_yaml_read_differently_are_refused_in_files(tmp_path):
  (tmp_path / 'a.yaml').write_text('trainer:\n  train_steps: 010\n')
  expected = 'a.yaml: malformed YAML: 010 is 8 in YAML 1.1 and 10 in YAML 1.2 in line 2, column 16$'
  with pytest.raises(errors.UserError, match=expected):
    parse(config_file=[str(tmp_path / 'a.yaml')])
  for text, value in (('0', 0), ('-7', -7), ('09', 9), ('0.5', 0.5), ('0x10', 16)):
    assert config_text.load(f'a: {text}', 'test') == {'a': value}


def test_dump_is_read_back_by_every_kind_of_reader():
  values = {'a': ['yes', '1e3', '010', 'null', '', 'x\ny', 'é', 'off', '~', '1:30'], 'b': {'c': (1, -2.5e-7, 1e20)}}
  expected = {'a': values['a'], 'b': {'c': list(values['b']['c'])}}
  assert config_text.load(config_text.dump(values), 'test') == expected
  assert yaml.safe_load(config_text.dump(values)) == expected


@pytest.mark.slow
def test_all_of_model_garden_parses_and_survives_a_file(tmp_path):
  names = [
    name
    for name in parser.experiment_names()
    if parser.factory_of(name).__module__.startswith('official.') and name != 'mock'
  ]
  assert len(names) == 40
  for name in names:
    stock = exp_factory.get_exp_config(name)
    params = parse(name, mode=None)
    for section, ours in (('trainer', definitions.TrainerConfig), ('runtime', definitions.RuntimeConfig)):
      assert isinstance(getattr(params, section), ours), name
      for field, value in getattr(stock, section).as_dict().items():
        if field not in ('distribution_strategy', 'enable_xla'):
          added = {'parameter_groups': (), 'ema_zero_start': False} if field == 'optimizer_config' else {}
          if field == 'best_checkpoint_metric_comp' and value == 'higher':  # Model Garden's default counts as unset.
            value = 'auto'
          assert getattr(params, section).as_dict()[field] == ({**value, **added} if added else value), (name, field)
    # The seed that the parser fills in is all that is new in the task.
    task = stock.task.as_dict()
    task['train_data'].update(seed=0, deterministic=params.task.train_data.deterministic)
    assert params.task.as_dict() == task, name
    again = parse(name, mode=None, config_file=[write(tmp_path / 'params.yaml', config_text.dump(params.as_dict()))])
    assert repr(again.as_dict()) == repr(params.as_dict()), name


def test_model_gardens_own_files_can_be_read(tmp_path):
  params = parse('maskrcnn_resnetfpn_coco', mode=None)
  path = str(tmp_path / 'params.yaml')
  hyperparams.save_params_dict_to_yaml(params, path)
  # It writes tuples with a special tag.
  assert parse('maskrcnn_resnetfpn_coco', mode=None, config_file=[path]).as_dict() == params.as_dict()


def test_an_experiments_own_restrictions_hold_where_it_is_used():
  assert parse('wmt_transformer/large', mode=None)
  for use in ({'mode': 'train'}, {'mode': None, 'dry_run': True}):
    with pytest.raises(errors.UserError) as info:
      parse('wmt_transformer/large', **use)
    assert str(info.value) == (
      'task.sentencepiece_model_path: this experiment requires task.sentencepiece_model_path != None'
    )


@pytest.mark.parametrize(
  'files, bindings',
  [
    (['nowhere.gin'], None),
    (None, ['no_such_configurable.x = 1']),
    (None, ['broken']),
  ],
)
def test_bad_gin_is_one_line(files, bindings):
  with pytest.raises(errors.UserError, match='^--gin_file, --gin_params: ') as info:
    parser.parse_gin(files, bindings)
  assert '\n' not in str(info.value)


def test_leaves_are_the_fields_that_are_read():
  params = parse(lock=False)
  paths = [field.path for field in overrides.leaves(params)]
  assert 'task.model.body.narrow.width' in paths and 'task.model.layers.1.name' in paths
  assert not any(path.startswith('task.model.body.wide') for path in paths)
  assert len(paths) == len(set(paths))
  # Every one of them can be set to its value.
  for field in overrides.leaves(params):
    value = field.value.as_dict() if isinstance(field.value, hyperparams.Config) else field.value
    overrides.override(params, config_text.nest([(field.path.split('.'), value)], 'test'))


def test_a_walk_meets_each_field_before_those_inside_it():
  model = Model()
  found = {field.path: field for field in overrides.walk(model, 'm')}
  part = ['m.body', 'm.body.type', 'm.body.narrow', 'm.body.narrow.width', 'm.body.narrow.name', 'm.norm']
  assert list(found)[: len(part)] == part and 'm.layers.1.width' in found
  assert found['m.layers.1.width'].owner is model.layers[1] and found['m.layers.1.width'].hint is int
  assert list(found['m.layers'].parts()) == [('m.layers.0', model.layers[0]), ('m.layers.1', model.layers[1])]
  assert list(found['m.free'].parts()) == [('m.free', model.free)] and found['m.free'].is_leaf()
  parts = [part for field in found.values() for part in field.parts()]
  assert list(checks.configs(model, 'm')) == [('m', model), *parts]
  everything = {field.path for field in overrides.walk(model, 'm', enters=lambda *_: True)}
  assert everything - set(found) == {'m.body.wide', 'm.body.wide.width', 'm.body.wide.name'}


def test_paths_in_the_home_folder_are_found_at_every_depth(monkeypatch):
  monkeypatch.setenv('HOME', '/homes/me')
  values = {
    'words': ['~/a', 'b~/c', 'file:///d'],
    'layers': {0: {'name': '~/e'}},
    'anything': [{'a.path': '~/f', 'size': 2}],
  }
  params = parse(params_override=yaml.safe_dump({'task': {'model': values, 'train_data': {'input_path': '~/x,~/y'}}}))
  model = params.task.model
  assert model.words == ['/homes/me/a', 'b~/c', '/d'] and model.layers[0].name == '/homes/me/e'
  assert model.layers[1].name == 'b' and model.sizes == (3, 4)
  assert vars(model.anything[0])['a.path'] == '/homes/me/f'
  assert params.task.train_data.input_path == '/homes/me/x,/homes/me/y'
