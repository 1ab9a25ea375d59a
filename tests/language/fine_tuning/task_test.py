"""The common part of fine-tuning methods: the model of a folder, its reference, its text, its result."""

import json
import logging
import os
import pathlib
import shutil
import types

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import data_identity
from official_ext.language.fine_tuning import fine_tuning_config
from official_ext.language.fine_tuning import task as task_lib
from official_ext.language.modeling import activation_memory
from official_ext.language.modeling import decoder
from official_ext.language.modeling import lora
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.training.checkpoints import contents
from official_ext.training.config import checks
from official_ext.training.config import overrides
from official_ext.training.loop import training_input
from official_ext.training.record import code_identity
import registry_imports  # noqa: F401
from tests import tiers
from tests.data.prepare import prepared_inputs
from tests.language.fine_tuning import tiny_models

IDS = np.random.default_rng(0).integers(0, 304, [2, 9]).astype(np.int32)


class WithReference(task_lib.FineTuningTask):
  needs_reference = True


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return tiny_models.write(tmp_path_factory.mktemp('models') / 'base')


def make_task(folder, task_class=WithReference, **changes):
  config = fine_tuning_config.FineTuningConfig()
  overrides.override(config, changes)
  checks.check_values(config, 'task')
  return task_class(config, logging_dir=str(folder))


def disturb(model):
  """Changes the trained weights, as training does."""
  for number, variable in enumerate(model.trainable_variables):
    variable.assign_add(0.05 * tf.random.stateless_normal(variable.shape, [7, number]))


def logits(model):
  return np.asarray(model(IDS))


def write_records(path, number=20):
  lines = [json.dumps({'prompt': f'What is {n}?', 'completion': f'The number {n}.'}) for n in range(number)]
  pathlib.Path(path).write_text('\n'.join(lines) + '\n')
  return str(path)


@pytest.mark.slow
@tiers.parametrize(
  'changes',
  [
    {'load_in_4bit': True, 'frozen_dtype': 'bfloat16'},
    {'use_lora': False},
    {'model': {'scan_layers': True, 'remat': 'block'}, 'lora': {'use_dora': True}},
    {'load_in_4bit': True, 'lora': {'modules_to_save': ['lm_head', 'norm']}},
  ],
  ids=['4 bits', 'all weights', 'stacked', 'modules to save'],
  fast=1,
)
def test_the_reference_is_the_model_as_it_was_when_training_began(base, tmp_path, changes):
  task = make_task(tmp_path, model_path=base, **changes)
  model = task.build_model()
  task.initialize(model)
  before = logits(model)
  disturb(model)
  assert np.abs(logits(model) - before).max() > 0.1
  np.testing.assert_allclose(task.reference(model)(IDS), before, atol=1e-5)
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(task.reference(model)(IDS)) + tf.reduce_sum(model(IDS))
  gradients = tape.gradient(loss, model.trainable_variables)
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(model(IDS))
  for one, other in zip(gradients, tape.gradient(loss, model.trainable_variables)):
    np.testing.assert_array_equal(tf.convert_to_tensor(one), tf.convert_to_tensor(other))
  # Another process restores the weights of the same reference; new adapters need nothing.
  assert hasattr(model, 'checkpoint_items')
  has_copy = changes == {'use_lora': False} or 'modules_to_save' in changes.get('lora', {})
  assert ('reference' in model.checkpoint_items) == has_copy
  path = tf.train.Checkpoint(model=model, **model.checkpoint_items).write(str(tmp_path / 'ckpt'))
  again = make_task(tmp_path, model_path=base, **changes)
  other = again.build_model()
  disturb(other)
  tf.train.Checkpoint(model=other, **other.checkpoint_items).read(path).assert_existing_objects_matched()
  np.testing.assert_array_equal(again.reference(other)(IDS), task.reference(model)(IDS))
  np.testing.assert_array_equal(logits(other), logits(model))


@pytest.mark.slow
def test_adapters_of_a_folder_are_trained_further_and_their_reference_has_them(base, tmp_path):
  first = make_task(tmp_path / 'first', model_path=base)
  model = first.build_model()
  disturb(model)
  folders = first.save_result(model)
  assert list(folders) == ['adapter']
  second = make_task(tmp_path / 'second', model_path=folders['adapter'])
  found = second.build_model()
  np.testing.assert_allclose(logits(found), logits(model), atol=1e-5)
  disturb(found)
  np.testing.assert_allclose(second.reference(found)(IDS), logits(model), atol=1e-5)
  # Or all weights are trained, with the adapters added to them.
  whole = make_task(tmp_path / 'third', model_path=folders['adapter'], use_lora=False).build_model()
  assert lora.adapters(whole) == []
  np.testing.assert_allclose(logits(whole), logits(model), atol=1e-4)


@tiers.parametrize(
  'changes',
  [
    {},
    {'load_in_4bit': True},
    {'use_lora': False},
    {'load_in_4bit': True, 'lora': {'modules_to_save': ['lm_head', 'norm']}},
  ],
  ids=['lora', 'nf4', 'full', 'modules to save'],
  fast=1,
)
def test_the_result_loads_to_the_same_logits(base, tmp_path, changes):
  saves_merged = 'use_lora' not in changes
  task = make_task(tmp_path, model_path=base, save_merged=saves_merged, **changes)
  model = task.build_model()
  disturb(model)
  expected = logits(model)
  folders = task.save_result(model)
  assert folders['model'] == str(tmp_path / 'model')
  np.testing.assert_allclose(logits(pretrained.load(folders['model'])), expected, atol=1e-4)
  np.testing.assert_array_equal(logits(model), expected)
  for folder in folders.values():
    assert sorted(os.listdir(folder)) == sorted({*os.listdir(folder), 'tokenizer.json', 'chat_template.jinja'})
  assert [name for name in os.listdir(tmp_path) if name.startswith('.')] == []
  if saves_merged:
    again = pretrained.load(base)
    peft_folders.load(again, folders['adapter'], task.config.frozen_kernels())
    np.testing.assert_allclose(logits(again), expected, atol=1e-5)
    assert task.config.frozen_kernels().method == ('nf4' if changes else 'none')


@pytest.mark.slow
@pytest.mark.parametrize('use_classifier', [False, True], ids=['language model', 'classifier'])
def test_adapters_over_4_bits_are_merged_into_4_bits_to_train_all_weights(base, tmp_path, use_classifier):
  """The model that was evaluated, not its adapters over other weights."""
  first = make_task(tmp_path / 'first', model_path=base, load_in_4bit=True, frozen_dtype='bfloat16')
  model = first.build_model()
  disturb(model)
  folders = first.save_result(model)
  whole = make_task(tmp_path / 'whole', model_path=folders['adapter'], use_lora=False)
  if use_classifier:
    scorer = whole.build_classifier(2)
    np.testing.assert_allclose(scorer.decoder(IDS)[0], model.decoder(IDS)[0], atol=1e-4)
  else:
    np.testing.assert_allclose(logits(whole.build_model()), logits(model), atol=1e-4)


def test_the_result_of_a_run_over_4_bits_states_it(base, tmp_path):
  task = make_task(tmp_path, model_path=base, load_in_4bit=True, save_merged=True)
  folders = task.save_result(task.build_model())
  found = [json.loads((pathlib.Path(folder) / 'base_model.json').read_text()) for folder in folders.values()]
  assert found[0] == found[1] and found[0]['quantization']['method'] == 'nf4' and found[0]['folder'] == base


class Louder(decoder.Block):
  def call(self, x, context):
    return super().call(2 * x, context)


class WithBlock(task_lib.FineTuningTask):
  """A task whose result would be another model."""

  def load_base(self, dtype=None):
    return pretrained.load(self.base_model.model, dtype=dtype, block_class=Louder)


@pytest.mark.parametrize('changes', [{}, {'use_lora': False}], ids=['adapters', 'all weights'])
def test_a_model_that_a_result_would_not_represent_is_refused_before_training(base, tmp_path, changes):
  task = make_task(tmp_path, WithBlock, model_path=base, **changes)
  trainer = types.SimpleNamespace(strategy=tf.distribute.get_strategy(), model=task.build_model())
  with pytest.raises(errors.UserError, match=r'decoder/blocks/0, a tests\..*\.Louder: '):
    task.build_actions(trainer)[0].prepare('train')


def test_a_classifier_that_a_result_would_not_represent_is_refused_by_its_writers(base, tmp_path):
  class Scoring(WithBlock):
    def result_writers(self, model):
      return self.classifier_writers(model)

  task = make_task(tmp_path, Scoring, model_path=base, use_lora=False)
  assert list(task.result_writers(task.build_classifier(1))) == ['model']
  model = pretrained.load_classifier(base, block_class=Louder)
  trainer = types.SimpleNamespace(strategy=tf.distribute.get_strategy(), model=model)
  with pytest.raises(errors.UserError, match=r'decoder/blocks/0, a tests\..*\.Louder: '):
    task.build_actions(trainer)[0].prepare('train')


@pytest.mark.slow
def test_a_merged_copy_repeats_no_warning_about_the_base(base, tmp_path, caplog):
  adapted = pretrained.load(base)
  lora.attach(adapted, lora.LoraConfig(r=2))
  peft_folders.save(adapted, str(tmp_path / 'adapter'))
  task = make_task(tmp_path / 'run', model_path=str(tmp_path / 'adapter'), load_in_4bit=True)
  logger = logging.getLogger('absl')
  propagates, logger.propagate = logger.propagate, True
  try:
    with caplog.at_level(logging.WARNING):
      model = task.build_language_model()
      assert caplog.text.count('but are loaded onto nf4 weights') == 1
      task.merged_language_model(model)
      assert caplog.text.count('but are loaded onto nf4 weights') == 1
  finally:
    logger.propagate = propagates


@tiers.parametrize('changes', [{'load_in_4bit': True}, {}], ids=['4 bits', 'another base'], fast=1)
def test_a_checkpoint_over_another_base_is_refused_in_words(base, tmp_path, changes):
  model = make_task(tmp_path, model_path=base).build_model()
  path = tf.train.Checkpoint(model=model).write(str(tmp_path / 'ckpt-3'))
  other = base if changes else tiny_models.write(tmp_path / 'other', seed=3)
  task = make_task(tmp_path, model_path=other, **changes)
  model = task.build_model()
  with pytest.raises(errors.UserError, match='the frozen base of the adapters is not that which they were trained on'):
    contents.Contents(path).match(tf.train.Checkpoint(model=model)).check(path)
  task.config.init_checkpoint = path
  with pytest.raises(errors.UserError, match='the frozen base of the adapters is not that which they were trained on'):
    task.initialize(model)


def test_init_checkpoint_with_weights_that_are_not_finite_is_refused_by_name(base, tmp_path):
  task = make_task(tmp_path, model_path=base)
  model = task.build_model()
  model.trainable_variables[2].assign(model.trainable_variables[2] * np.nan)
  task.config.init_checkpoint = tf.train.Checkpoint(model=model).write(str(tmp_path / 'ckpt-3'))
  model = task.build_model()
  with pytest.raises(errors.UserError, match=r'lora_a\S* \(\S+\) has values that are not finite in it'):
    task.initialize(model)


@pytest.mark.slow
def test_a_result_that_cannot_be_written_leaves_the_one_before(base, tmp_path, monkeypatch):
  task = make_task(tmp_path, model_path=base)
  model = task.build_model()
  task.save_result(model)
  before = logits(model)
  disturb(model)
  # The leftovers of a process that died while it wrote: one of this machine that does not exist any more.
  (tmp_path / f'.adapter.{os.uname().nodename}-999999999.partial').mkdir()

  def full(self, folder):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(type(task.tokenizer), 'save', full)
    with pytest.raises(errors.StorageError, match='adapter: cannot be written: No space left on device'):
      task.save_result(model)
  assert os.listdir(tmp_path) == ['adapter']
  again = pretrained.load(base)
  peft_folders.load(again, str(tmp_path / 'adapter'))
  np.testing.assert_allclose(logits(again), before, atol=1e-5)


def test_a_part_of_the_records_is_kept_for_validation(base, tmp_path):
  path = write_records(tmp_path / 'data.jsonl')
  task = make_task(tmp_path, model_path=base, train_data={'input_path': path}, validation_share=0.25)
  train, validation = task.records(task.config.train_data), task.records(task.config.validation_data)
  places = [records.place(index) for records in (train, validation) for index in range(len(records))]
  assert (len(train), len(validation)) == (15, 5) and len(set(places)) == 20
  assert validation.read(0) == {'prompt': 'What is 3?', 'completion': 'The number 3.'}
  other = write_records(tmp_path / 'other.jsonl', 3)
  task = make_task(tmp_path, model_path=base, train_data={'input_path': path}, validation_data={'input_path': other})
  assert [len(task.records(data)) for data in (task.config.train_data, task.config.validation_data)] == [20, 3]
  task = make_task(tmp_path, model_path=base, train_data={'input_path': path}, validation_share=0)
  assert len(task.records(task.config.train_data)) == 20
  with pytest.raises(errors.UserError, match=r'task\.validation_data\.input_path: is empty, and none .* of 20'):
    task.records(task.config.validation_data)


def test_a_data_service_has_the_input_of_runs_with_and_without_evaluations(tmp_path):
  path = write_records(tmp_path / 'data.jsonl')
  params = exp_factory.get_exp_config('sft')
  data = {name: {'seq_length': 64, 'packing': 'none'} for name in ('train_data', 'validation_data')}
  params.override({'task': {**data, 'tokenizer_path': tiny_models.write(tmp_path / 'base')}})
  params.task.train_data.input_path = path
  lengths = {}
  for served in training_input.build_served_inputs(params).values():
    lengths.setdefault(served.path, set()).add(served.maker.num_examples)
  assert lengths == {'task.train_data': {18, 20}, 'task.validation_data': {2}}


def test_rows_that_were_prepared_are_read_as_they_are_and_not_divided(base, tmp_path):
  path, out = write_records(tmp_path / 'data.jsonl'), str(tmp_path / 'out')
  prepared_inputs.prepare(path, out, tokenizer_lib.Tokenizer.load(base), seq_length=64, use_chat_template=True)
  make = lambda input_path, **changes: make_task(
    tmp_path, model_path=base, train_data={'input_path': input_path, 'seq_length': 64}, **changes
  )
  task, raw = make(out, validation_share=0), make(path, validation_share=0)
  found, expected = (each.source(each.config.train_data).fetch(range(20)) for each in (task, raw))
  tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
  with pytest.raises(errors.UserError, match=rf'^task.train_data.input_path: {out}: rows that were prepared are not'):
    task = make(out)
    task.source(task.config.train_data)
  task = make(path, validation_data={'input_path': out, 'seq_length': 64})
  assert len(task.source(task.config.validation_data)) == 20


def test_answers_with_labels_that_were_prepared_are_those_of_kto(base, tmp_path):
  path, out = str(tmp_path / 'data.jsonl'), str(tmp_path / 'out')
  records = [{'prompt': f'{n}?', 'completion': f'answer {n}', 'good': n % 3 == 0} for n in range(20)]
  pathlib.Path(path).write_text(''.join(json.dumps(record) + '\n' for record in records))
  settings = {'seq_length': 64, 'label_column': 'good'}
  tokenizer = tokenizer_lib.Tokenizer.load(base)
  prepared_inputs.prepare(path, out, tokenizer, use_chat_template=True, example_format='unpaired', **settings)
  found, expected = [], []
  for rows, input_path in ((found, out), (expected, path)):
    params = text_task.TextDataConfig(
      is_training=True, input_path=input_path, use_chat_template=None, example_format='unpaired', **settings
    )
    rows += text_sources.open_source(params, tokenizer).fetch(range(20))
  tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
  assert [int(row['is_desirable']) for row in found] == [int(record['good']) for record in records]
  pairs = tmp_path / 'pairs.jsonl'
  pairs.write_text(json.dumps({'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}) + '\n')
  with pytest.raises(
    errors.UserError, match='--example_format: unpaired: the records are pairs; expected a prompt, an'
  ):
    prepared_inputs.prepare(str(pairs), str(tmp_path / 'new'), tokenizer, example_format='unpaired', seq_length=64)


def test_a_data_service_serves_prepared_rows_to_runs_that_do_not_evaluate(tmp_path, caplog):
  path, out, base = write_records(tmp_path / 'data.jsonl'), str(tmp_path / 'out'), tiny_models.write(tmp_path / 'base')
  prepared_inputs.prepare(path, out, tokenizer_lib.Tokenizer.load(base), seq_length=64, use_chat_template=True)
  params = exp_factory.get_exp_config('sft')
  data = {name: {'seq_length': 64, 'packing': 'none'} for name in ('train_data', 'validation_data')}
  params.override({'task': {**data, 'tokenizer_path': base}})
  params.task.train_data.input_path = out
  found = training_input.build_served_inputs(params)
  assert [(served.path, served.maker.num_examples) for served in found.values()] == [('task.train_data', 20)]
  expected = f'Only --mode=train is served: task.train_data.input_path: {out}: rows that were prepared are not divided'
  assert any(line.startswith(expected) for line in caplog.messages)
  params.task.train_data.input_path = str(tmp_path / 'missing')
  with pytest.raises(errors.UserError, match='^task.train_data.input_path: '):
    training_input.build_served_inputs(params)


def test_chat_templates_of_one_name_are_two_files_of_code(base, tmp_path):
  data = {}
  for name in ('train', 'validation'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'chat.jinja').write_text(f'{name}: {{{{ messages }}}}')
    data[f'{name}_data'] = {'chat_template_path': str(tmp_path / name / 'chat.jinja')}
  digests = code_identity.of_task(make_task(tmp_path, model_path=base, **data))
  for name in ('train', 'validation'):
    expected = data_identity.digest([f'{name}: {{{{ messages }}}}'.encode()])
    assert digests[f'task.{name}_data.chat_template_path'] == expected


def test_prompts_become_turns_if_the_tokenizer_has_a_chat_template(base, tmp_path):
  path = write_records(tmp_path / 'data.jsonl')
  task = make_task(tmp_path, model_path=base, train_data={'input_path': path, 'seq_length': 64})
  row = task.source(task.config.train_data).fetch([0])[0]
  text = task.tokenizer.decode(row['input_ids'][row['segment_ids'] == 1])
  assert text == '<|user|>\nWhat is 0?<|end|>\n<|assistant|>\nThe number 0.<|endoftext|>'
  learned = task.tokenizer.decode(row['labels'][row['labels'] >= 0])
  assert learned == 'The number 0.<|endoftext|>'
  plain = make_task(
    tmp_path, model_path=base, train_data={'input_path': path, 'seq_length': 64, 'use_chat_template': False}
  )
  row = plain.source(plain.config.train_data).fetch([0])[0]
  assert plain.tokenizer.decode(row['input_ids'][row['segment_ids'] == 1]) == 'What is 0?The number 0.<|endoftext|>'


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'use_lora': True}, 'task.use_lora: adapters require a trained model: set task.model_path'),
    ({'load_in_4bit': True}, 'task.load_in_4bit: is for frozen weights, and all weights are trained; set task.model_'),
    ({'model_path': 'm', 'use_lora': False, 'frozen_dtype': 'bfloat16'}, 'task.frozen_dtype: is for frozen weights'),
    ({'model_path': 'm', 'load_in_4bit': True, 'quantization': {'method': 'int8'}}, 'task.load_in_4bit: contradicts'),
    ({'model_path': 'm', 'use_lora': False, 'save_merged': True}, 'task.save_merged: there are no adapters'),
    ({'lora': {'r': 4}}, 'task.lora: no adapters are trained, which need task.model_path'),
    ({'model': {'hidden_act': 'tanh'}}, "task.model.hidden_act: 'tanh' is "),
    (
      {'validation_data': {'example_format': 'unpaired'}},
      'task.validation_data.example_format: unpaired is for the experiment preference with task.loss_type=kto',
    ),
    ({'model': {'qk_norm': True}}, 'task.model.qk_norm: True cannot be saved as llama, which has False'),
  ],
)
def test_contradictions_are_refused(tmp_path, changes, message):
  with pytest.raises(errors.UserError) as refused:
    make_task(tmp_path, **changes)
  assert str(refused.value).startswith(message), refused.value


def test_folders_that_are_none_are_refused(base, tmp_path):
  with pytest.raises(errors.UserError, match=r'task\.model_path: nowhere: no such folder'):
    make_task(tmp_path, model_path='nowhere').build_model()
  (tmp_path / 'run/model').mkdir(parents=True)
  (tmp_path / 'run/params.yaml').write_text('')
  with pytest.raises(errors.UserError, match='/run: is the folder of a run; its result is .*/run/model$'):
    make_task(tmp_path, model_path=str(tmp_path / 'run')).build_model()
  (tmp_path / 'adapter').mkdir()
  (tmp_path / 'adapter/adapter_config.json').write_text('{"base_model_name_or_path": "meta/llama"}')
  with pytest.raises(errors.UserError, match='base_model_name_or_path: meta/llama: no such folder'):
    make_task(tmp_path, model_path=str(tmp_path / 'adapter')).build_model()
  task = make_task(tmp_path, tokenizer_path=base, model={'vocab_size': 260})
  with pytest.raises(errors.UserError, match=r'task\.tokenizer_path: the tokenizer of .* has \d+ tokens, and '):
    task.build_model()


def test_the_frozen_base_of_a_model_is_that_of_its_folder(base, tmp_path):
  """Adapters are trained alone, and the base keeps its digest."""
  model = make_task(tmp_path, model_path=base).build_model()
  digest = model_weights.frozen_digest(model)
  disturb(model)
  assert model_weights.frozen_digest(model) == digest
  assert all('lora_' in variable.name for variable in model.trainable_variables)


@pytest.mark.slow
def test_the_result_is_checked_by_its_logits(base, tmp_path):
  changes = dict(model_path=base, train_data={'input_path': write_records(tmp_path / 'data.jsonl')}, save_merged=True)
  task = make_task(tmp_path, **changes)
  model = task.build_model()
  disturb(model)
  lines = task.check_result(model, str(tmp_path / 'result'))
  assert [line.partition(':')[0] for line in lines] == ['adapter', 'model']
  assert all('saved and loaded, logits differ by at most ' in line for line in lines)
  assert sorted(os.listdir(tmp_path)) == ['data.jsonl', 'result']  # Nothing where a run would save it.

  class SavesTheBase(task_lib.FineTuningTask):
    def result_writers(self, model):
      return {'model': lambda folder: pretrained.save(pretrained.load(base), folder)}

  with pytest.raises(errors.UserError, match='^model: saved and loaded again, its logits differ by '):
    make_task(tmp_path, SavesTheBase, **changes).check_result(model, str(tmp_path / 'result'))


@pytest.mark.parametrize('share', [0.1, 0.25, 0.4, 0.75, 0.95])
@pytest.mark.parametrize('number', [2, 3, 100])
def test_the_share_of_validation_is_that_part_of_the_records(share, number):
  held_out = task_lib._held_out(number, share)
  assert abs(held_out.sum() - share * number) < 1 and 0 < held_out.sum() < number


def test_a_result_replaces_neither_its_base_nor_what_another_run_has_left(base, tmp_path):
  def prepare(**changes):
    task = make_task(tmp_path, use_lora=False, **changes)
    trainer = types.SimpleNamespace(strategy=tf.distribute.get_strategy(), model=task.build_model())
    task.build_actions(trainer)[0].prepare('train')

  shutil.copytree(base, tmp_path / 'out/model')
  with pytest.raises(errors.UserError, match='out/model is the model that training begins with; name another folder'):
    prepare(model_path=str(tmp_path / 'out/model'), output_dir=str(tmp_path / 'out'))
  with pytest.raises(errors.UserError, match='out/model exists already; name another folder, or move it away'):
    prepare(model_path=base, output_dir=str(tmp_path / 'out'))
  prepare(model_path=base, output_dir=str(tmp_path / 'other'))


@pytest.mark.parametrize(
  'experiment, changes, sequences, length, has_logits',
  [
    ('sft', {}, 4, 24, True),
    ('preference', {}, 8, 24, True),
    ('preference', {'loss_type': 'kto'}, 4, 24, True),
    ('reward_model', {}, 8, 24, False),
    ('grpo', {'num_generations': 3, 'max_completion_length': 5}, 12, 29, True),
  ],
)
def test_the_texts_of_a_micro_batch_that_its_memory_is_estimated_by(experiment, changes, sequences, length, has_logits):
  params = exp_factory.get_exp_config(experiment)
  params.override({'task': {'train_data': {'global_batch_size': 4, 'seq_length': 24}, **changes}})
  task = task_factory.get_task(params.task)
  assert task.training_shapes(1) == activation_memory.TrainingShapes(sequences, length, has_logits)
  assert task.training_shapes(2).sequences == sequences // 2
  model = task.build_model()
  expected = activation_memory.of_step(model.config, task.training_shapes(1), 'float32')
  assert task.activation_bytes(model, 1) == expected
  weights, trained = task.least_weights()
  assert 0.95 < trained / sum(variable.shape.num_elements() for variable in model.trainable_variables) <= 1
  assert weights == 4 * trained
