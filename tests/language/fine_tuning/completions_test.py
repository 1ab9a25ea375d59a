"""Answers to validation prompts: the prompts of each format, the answers, the measures, and what is refused."""

import json

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.fine_tuning import completions as completions_lib
from official_ext.language.fine_tuning import rewards
from official_ext.language.modeling import generation
from official_ext.training.actions import triggers
from official_ext.training.config import checks
from official_ext.training.config import overrides
import registry_imports  # noqa: F401
from tests.language.fine_tuning import tiny_models

TURN = '<|user|>\n{}<|end|>\n<|assistant|>\n'
CONVERSATION = [
  {'role': 'user', 'content': 'one'},
  {'role': 'assistant', 'content': 'two'},
  {'role': 'user', 'content': 'three'},
  {'role': 'assistant', 'content': 'four'},
]


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  folder = tmp_path_factory.mktemp('completions')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    yield tiny_models.write(folder / 'base')


def make_task(base, folder, records, experiment='sft', data=None, **changes):
  (folder / 'data.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in records))
  params = exp_factory.get_exp_config(experiment)
  data = {'input_path': str(folder / 'data.jsonl'), 'seq_length': 64, **(data or {})}
  changes = {'model_path': base, 'use_lora': False, 'validation_data': data, 'completions': changes}
  overrides.override(params, {'task': changes})
  checks.check_values(params.task, 'task')
  return task_factory.get_task(params.task, logging_dir=str(folder))


@pytest.mark.parametrize(
  ('experiment', 'record', 'data', 'prompt', 'answer'),
  [
    ('sft', {'prompt': 'What?', 'completion': 'That.'}, {}, TURN.format('What?'), 'That.'),
    ('sft', {'prompt': 'a ', 'completion': 'b'}, {'use_chat_template': False}, 'a ', 'b'),
    ('sft', {'messages': CONVERSATION}, {}, TURN.format('one'), 'two'),
    (
      'sft',
      {'messages': CONVERSATION},
      {'loss_on': 'last_completion'},
      TURN.format('one') + 'two<|endoftext|>' + TURN.format('three'),
      'four',
    ),
    (
      'preference',
      {'prompt': 'p', 'chosen': 'good', 'rejected': 'bad'},
      {'use_chat_template': True},
      TURN.format('p'),
      'good',
    ),
    ('grpo', {'prompt': 'p', 'answer': 7}, {}, TURN.format('p'), '7'),
  ],
)
def test_prompts_and_answers_are_those_of_the_records(base, tmp_path, experiment, record, data, prompt, answer):
  task = make_task(base, tmp_path, [record] * 3, experiment, data)
  found = task.answers.prompts(2)
  assert [each.text for each in found] == [prompt] * 2 and [each.answer for each in found] == [answer] * 2
  assert found[0].tokens == task.tokenizer.encode(prompt, add_special_tokens=False)
  assert dict(found[0].record) == record and len(task.answers.prompts(-1)) == 3


@pytest.mark.parametrize(
  ('record', 'data'),
  [({'text': 'only this'}, {}), ({'prompt': 'a', 'completion': 'b'}, {'loss_on': 'all', 'use_chat_template': False})],
)
def test_texts_without_prompts_are_refused(base, tmp_path, record, data):
  task = make_task(base, tmp_path, [record] * 3, data=data)
  with pytest.raises(errors.UserError, match='task.validation_data: none of the records has a prompt'):
    task.answers.prompts(2)


@pytest.mark.slow
def test_answers_are_those_of_each_prompt_by_itself(base, tmp_path):
  records = [{'prompt': 'word ' * (1 + 7 * number % 5), 'completion': 'yes'} for number in range(7)]
  task = make_task(base, tmp_path, records, max_new_tokens=5, batch_size=3)
  model, prompts = task.build_model(), task.answers.prompts(-1)
  alone = generation.Generator(model, task.answers._settings(0.0))
  expected = [alone([prompt.tokens])[0].tokens for prompt in prompts]
  assert task.answers.complete(model, prompts, 0.0) == expected
  drawn = [task.answers.complete(model, prompts[:3], 1.0, seed) for seed in (0, 0, 1)]
  assert drawn[0] == drawn[1] != drawn[2]


def test_measures_and_events_are_those_of_the_answers(base, tmp_path, monkeypatch):
  @rewards.register('length_of_completions_test')
  def length(completions, unit, **columns):
    return [len(text) / one for text, one in zip(completions, unit)]

  records = [{'prompt': f'p{n}', 'completion': f'right {n}', 'unit': 2} for n in range(4)]
  names = ['exact_match', 'contains', length.__name__ + '_of_completions_test']
  task = make_task(base, tmp_path, records, metrics=names, num_prompts=2, interval=5, max_prompts=3)
  answers = ['right 0', ' so right 1!', 'wrong']
  monkeypatch.setattr(
    task.answers,
    'complete',
    lambda model, prompts, temperature, seed=0: [
      task.tokenizer.encode(text, add_special_tokens=False) for text, _ in zip(answers, prompts)
    ],
  )
  expected = {'exact_match': 1 / 3, 'contains': 2 / 3, names[2]: sum(map(len, answers)) / 2 / 3}
  assert task.evaluation_end(None) == pytest.approx({f'completions/{name}': expected[name] for name in names})
  assert list(task.evaluation_end_names) == [f'completions/{name}' for name in names]
  values = task.logged_completions(None, 5)
  assert values['completions'] == answers[:2] and values['answers'] == ['right 0', 'right 1']
  assert values['prompts'] == [TURN.format('p0'), TURN.format('p1')] and set(map(len, values.values())) == {2}


def test_long_texts_of_an_event_are_shortened():
  values = completions_lib.event_values(['a' * 9000], ['b'], rewards={'r': [1.0]})
  assert len(values['prompts'][0]) < 4100 and values['rewards/r'] == [1.0]


@pytest.mark.slow
def test_group_advantages_of_grpo_are_those_of_its_rewards(base, tmp_path):
  records = [{'prompt': f'p{n}', 'answer': 'x'} for n in range(3)]
  task = make_task(base, tmp_path, records, 'grpo', {'seq_length': 16}, interval=1, num_prompts=2)
  overrides.override(task.config, {'max_completion_length': 4, 'reward_funcs': ['ended', 'contains']})
  values = task.logged_completions(task.build_model(), 3)
  count = task.config.num_generations
  assert len(values['completions']) == 2 * count and values['prompts'][0] == values['prompts'][count - 1]
  total = np.add(values['rewards/ended'], values['rewards/contains']).reshape(2, count)
  deviation = total.std(axis=1, ddof=1, keepdims=True)
  expected = (total - total.mean(axis=1, keepdims=True)) / (deviation + 1e-4)
  np.testing.assert_allclose(np.reshape(values['advantages'], [2, count]), expected, atol=1e-3)
  assert values == task.logged_completions(task.build_model(), 3)


@pytest.mark.parametrize(
  ('experiment', 'changes', 'expected'),
  [
    ('sft', {'metrics': ['exact_tokens']}, 'task.completions.metrics: exact_tokens: is a function of tensors'),
    ('sft', {'metrics': ['exact_mach']}, "task.completions.metrics: no reward 'exact_mach'; did you mean"),
    ('sft', {'max_prompts': 0}, 'task.completions.max_prompts: expected -1 for all'),
    ('sft', {'interval': -1}, 'task.completions.interval'),
    ('reward_model', {'interval': 1}, 'task.completions: a model of scores continues no text'),
  ],
)
def test_mistakes_are_refused(base, tmp_path, experiment, changes, expected):
  with pytest.raises(errors.UserError) as raised:
    make_task(base, tmp_path, [{'prompt': 'a', 'completion': 'b'}], experiment, **changes)
  assert expected in str(raised.value)


def test_a_mesh_is_refused():
  params = exp_factory.get_exp_config('sft')
  overrides.override(params, {'task': {'completions': {'interval': 1}}, 'runtime': {'mesh': {'data': 2}}})
  with pytest.raises(errors.UserError, match='task.completions: text is not generated on a mesh'):
    params.task.completions.check_run('task.completions', params, 'train')


def test_it_is_due_before_the_first_step_and_at_multiples(base, tmp_path):
  task = make_task(base, tmp_path, [{'prompt': 'a', 'completion': 'b'}], interval=5)

  class Trainer:
    strategy, model = tf.distribute.get_strategy(), None

  (trigger,) = completions_lib.actions(task, Trainer())
  due = lambda event, step: trigger.condition({'event': event, 'step': step})
  assert [due(triggers.BEGIN, 0), due(triggers.BEGIN, 5), due('train', 5), due('train', 6)] == [
    True,
    False,
    True,
    False,
  ]
  assert trigger.interval == 5
