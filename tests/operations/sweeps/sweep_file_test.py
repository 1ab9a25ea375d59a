"""Tests of the file of a sweep: valid contents, refusals, and allowed changes."""

import shlex

import pytest
import yaml

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_folder

VALUES = {
  'method': 'grid',
  'experiment': 'digits',
  'metric': {'name': 'accuracy', 'goal': 'maximize'},
  'parameters': {'a': {'values': [1, 2]}},
}


def test_a_file_of_weights_and_biases_is_read():
  # Of their documentation, but for the program, and with YAML 1.2's number 1e-4, which is a text in YAML 1.1.
  text = """
program: train.py
method: bayes
metric:
  name: validation_loss
  goal: minimize
parameters:
  learning_rate:
    min: 1e-4
    max: 0.1
  optimizer:
    values: ["adam", "sgd"]
early_terminate:
  type: hyperband
  s: 2
  eta: 3
  max_iter: 27
"""
  found = sweep_file.parse(config_text.load(text, 'sweep.yaml'))
  assert [(each.name, each.distribution) for each in found.parameters] == [
    ('learning_rate', 'uniform'),
    ('optimizer', 'categorical'),
  ]
  assert found.parameters[0].numbers == {'min': 1e-4, 'max': 0.1}
  assert found.early_terminate == sweep_file.Hyperband((3, 9), 3.0)
  assert yaml.safe_load(text)['parameters']['learning_rate']['min'] == '1e-4'


@pytest.mark.parametrize(
  ('change', 'expected'),
  [
    ({'method': 'bays'}, "method: 'bays' is invalid; choose one of grid, random, bayes"),
    ({'project': 'p'}, 'project: belongs to their server'),
    ({'parametres': {}}, 'parametres: no such key; did you mean parameters?'),
    ({'metric': {'name': 'loss', 'impute': 'worst'}}, 'metric.impute: runs that fail have no value here'),
    ({'metric': {'name': 'accuracy'}}, 'metric.goal: is missing, which means minimize; accuracy requires'),
    (
      {'metric': {'name': 'fid_score', 'goal': 'maximize'}},
      'metric.goal: maximize contradicts the name fid_score, of which lower is better; leave it out, or rename',
    ),
    ({'metric': None}, 'metric: expected a mapping'),
    ({'experiment': ''}, 'experiment: name the one to run'),
    ({'mode': 'eval'}, "mode: 'eval': a sweep trains"),
    ({'run_cap': 0}, 'run_cap: expected an integer of 1 or more, got 0'),
    ({'parameters': {'a': {'min': 0.0, 'max': 1.0}}}, 'parameters.a: method grid needs values, or integers'),
    ({'method': 'bayes', 'parameters': {'a': {'values': [1, 2], 'probabilities': [0.5, 0.5]}}}, 'parameters.a.prob'),
    ({'early_terminate': {'type': 'hyperband'}}, 'early_terminate: expected min_iter, or max_iter and s'),
    ({'early_terminate': {'type': 'median'}}, "early_terminate.type: 'median': there is hyperband"),
    ({'early_terminate': {'type': 'hyperband', 'max_iter': 2, 's': 1}}, 'early_terminate.max_iter: 2: leaves no band'),
    ({'early_terminate': {'type': 'hyperband', 'min_iter': 2, 'eta': 1}}, 'early_terminate.eta: expected a number'),
    ({'command': ['${program}', '${args}']}, 'command: must have ${model_dir}'),
    ({'flags': ['--model_dir=x']}, 'flags: --model_dir=x: the sweep gives this flag itself'),
    ({'flags': ['rm -rf /']}, "flags: 'rm -rf /' is not a flag of the driver"),
  ],
)  # fmt: skip
def test_what_is_wrong_or_not_done_is_refused_by_name(change, expected):
  with pytest.raises(errors.UserError) as error:
    sweep_file.parse({**VALUES, **change})
  assert str(error.value).startswith(expected)


def test_a_goal_needs_a_metric():
  values = {name: value for name, value in VALUES.items() if name != 'metric'}
  assert sweep_file.parse(values).metric is None
  with pytest.raises(errors.UserError, match='^metric: method bayes needs one'):
    sweep_file.parse({**values, 'method': 'bayes'})


@pytest.mark.parametrize(
  ('change', 'expected'),
  [
    ({}, []),
    ({'run_cap': 9, 'description': 'x'}, []),
    ({'parameters': {'a': {'values': [3, 2, 1]}}}, []),
    ({'parameters': {'a': {'values': [1]}}}, ['parameters.a.values: [1, 2] -> [1]']),
    ({'parameters': {'b': {'value': 1}}}, ['parameters.a.values: [1, 2] -> unset', 'parameters.b.value: unset -> 1']),
    ({'seed': 1}, ['seed: unset -> 1']),
    ({'run_cap': 3}, ['run_cap: 4 -> 3']),
  ],
)
def test_only_what_adds_points_may_change(change, expected):
  old = sweep_file.parse({**VALUES, 'run_cap': 4})
  assert sweep_file.differences(old, sweep_file.parse({**VALUES, 'run_cap': 4, **change})) == expected


# The example in the documentation of their library: two bands, at 1 and at 2, and half of the runs pass each.
HISTORIES = {1: [10, 9], 2: [10, 10], 3: [10, 8, 8], 4: [10, 7, 7], 5: [10, 6, 6]}


def test_early_ends_are_those_of_weights_and_biases():
  early = sweep_file.parse_hyperband({'type': 'hyperband', 'max_iter': 5, 'eta': 2, 's': 2, 'strict': True})
  assert early.bands == (1, 2)
  # At 1 the third of 6, 7, 8, 9, 10 is 8; at 2 the second of 6, 7, 8 is 7.
  assert early.to_end(HISTORIES, [2, 3, 4], 'minimize') == {
    2: '10 at iteration 1, and 8 was needed',
    3: '8 at iteration 2, and 7 was needed',
  }
  upside_down = {number: [-value for value in values] for number, values in HISTORIES.items()}
  assert early.to_end(upside_down, [2, 3, 4], 'maximize').keys() == {2, 3}


def test_an_early_end_that_is_not_strict_goes_by_the_best_value_so_far():
  early = sweep_file.parse_hyperband({'type': 'hyperband', 'min_iter': 1, 'eta': 2})
  assert early.bands[:4] == (1, 2, 4, 8)
  assert early.to_end({1: [9, 3], 2: [2, 4], 3: [9, 9]}, [2, 3], 'minimize') == {
    3: '9 at iteration 1, and 4 was needed'
  }


@pytest.mark.parametrize(
  'value',
  [0.1, 1e-4, 1 / 3, 5e-324, 1e22, -0.0, float('inf'), float('-inf'), 3, True, None, 'adam', '1e-3', 'true', 'null']
  + ['', ' x', 'a, b', '#1', '[1]', '{', 'a: b', "it's", '"', 'é\n\t\u2028', '~', '0x10', '.5', [1, 'a, b', [None]]]
  + [{'a': '1', 'b': [0.1]}, [], 'yes', '-', '*.tfrecord', '!x', '&a', '1_000', 'x #y'],
)
def test_set_reads_each_value_back_as_it_stands_in_the_file(value):
  text = config_text.setting_text(value)
  assert '\n' not in text
  found = config_text.load_value(text, '--set')
  found = found.value if isinstance(found, config_text.Literal) else found
  assert repr(found) == repr(value)


def test_a_command_has_the_macros_of_weights_and_biases(monkeypatch):
  monkeypatch.setenv('PORT', '7')
  command = ['${env}', 'python3', '${program}', '${args}', '--out=${model_dir}/x', '${envvar:PORT}', '${args_json}']
  sweep = sweep_file.parse({**VALUES, 'command': command})
  words = sweep_folder.point_command(sweep, 'p.py', '/m', {'a': 0.5, 'b': 'x y'})
  assert words == [
    *('/usr/bin/env', 'python3', 'p.py', '--a=0.5', '--b=x y', '--out=/m/x', '7', '{"a": 0.5, "b": "x y"}')
  ]
  switches = sweep_file.parse({**VALUES, 'command': ['${args_no_boolean_flags}', '${args_no_hyphens}', '${model_dir}']})
  words = sweep_folder.point_command(switches, 'p.py', '/m', {'a': True, 'b': False})
  assert words == ['--a', 'a=true', 'b=false', '/m']
  for word, expected in (('${args_json_file}', 'is not known'), ('x${args}', 'must be a separate word')):
    with pytest.raises(errors.UserError, match=expected):
      sweep_folder.point_command(sweep_file.parse({**VALUES, 'command': [word, '${model_dir}']}), '', '/m', {})


def test_the_driver_gets_its_flags():
  sweep = sweep_file.parse({**VALUES, 'flags': ['--registry=mine', '--set=train_steps=9']})
  words = sweep_folder.point_command(sweep, '/x/train.py', '/m/001', {'a': 1e-4, 'o.b': '1e-4'}, 'python')
  assert shlex.join(words) == (
    'python -u /x/train.py --experiment=digits --mode=train_and_eval --model_dir=/m/001 --registry=mine '
    '--set=train_steps=9 --set=a=0.0001 \'--set=o.b="1e-4"\''
  )
