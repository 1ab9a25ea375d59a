"""The experiment reward_model: the loss by the formula, resuming, and the folder that is left."""

import json

import numpy as np
import pytest

from experiments import reward_model  # noqa: F401  Registers it.
from official_ext.language.modeling import pretrained
from official_ext.language.text import tokenizer_training
from tests.experiments import shrunk_run
from tests.training.loop import harness

MODEL = {
  'vocab_size': 300,
  'hidden_size': 16,
  'intermediate_size': 24,
  'num_hidden_layers': 2,
  'num_attention_heads': 2,
  'num_key_value_heads': 2,
}
DATA = {'global_batch_size': 4, 'seq_length': 64}
SMALL = {'task': {'model': MODEL, 'train_data': DATA, 'validation_data': DATA}}


def make_params(*changes, **kwargs):
  return shrunk_run.make_params('reward_model', SMALL, *changes, **kwargs)


def first_batch(task):
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  return batch


def scores_of(model, batch, kind):
  return model(batch[f'{kind}_input_ids'], segments=batch[f'{kind}_segment_ids']).numpy()[:, 0].astype(np.float64)


def test_the_loss_is_that_of_bradley_and_terry():
  task = shrunk_run.make_task(make_params({'task': {'center_rewards_coefficient': 0.5}}))
  model = task.build_model()
  model.score.kernel.assign(np.random.default_rng(0).normal(0, 1, model.score.kernel.shape))
  batch = first_batch(task)
  loss, logs = task.forward(batch, model, training=False)
  chosen, rejected = (scores_of(model, batch, kind) for kind in ('chosen', 'rejected'))
  assert np.abs(chosen - rejected).max() > 0.1
  expected = np.log1p(np.exp(rejected - chosen)).mean() + 0.5 * np.square(chosen + rejected).mean()
  assert float(loss) == pytest.approx(expected, rel=1e-4)
  assert float(logs['rewards/margins']) == pytest.approx((chosen - rejected).mean(), rel=1e-3)
  np.testing.assert_array_equal(logs['accuracy'][0], (chosen > rejected).astype(np.float32))


def test_texts_that_end_with_the_padding_are_reported_before_the_training(tmp_path, caplog):
  """transformers scores the last token that is not padding, the model the last one."""
  task = shrunk_run.make_task(make_params())
  model = task.build_model()
  task.result_writers(model)
  assert 'padding' not in caplog.text
  task.tokenizer = tokenizer_training.train(['some words of a text'] * 9, 300)  # Its padding is its end.
  task.result_writers(model)
  assert caplog.text.count("the result: texts end with '<|endoftext|>', which is the padding token too") == 1
  pretrained.save(model, str(tmp_path), tokenizer=task.tokenizer)
  assert 'pad_token_id: 0 ends texts too' in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  shrunk_run.assert_resumes_bit_for_bit(make_params(enable_xla=enable_xla), tmp_path, replicas)


@pytest.mark.slow
def test_pairs_are_learned_and_the_result_scores_as_the_model_does(tmp_path):
  """First all weights, then adapters on the result."""
  trained = {'task': {'train_data': {'max_samples': 8}}}
  trainer = shrunk_run.make_trainer(make_params(trained, train_steps=40))
  for _ in range(5):
    logs = harness.train(trainer, 5)
  assert float(logs['accuracy']) == 1.0
  task = trainer.task
  task.config.output_dir = str(tmp_path / 'first')
  (folder,) = task.save_result(trainer.model).values()
  loaded, batch = pretrained.load_classifier(folder), first_batch(task)
  fields = json.loads((tmp_path / 'first/model/config.json').read_text())
  # Without it transformers takes one text at a time, and finds its end by it.
  assert fields['pad_token_id'] == task.tokenizer.pad_token_id != task.tokenizer.eos_token_id
  np.testing.assert_array_equal(scores_of(loaded, batch, 'chosen'), scores_of(trainer.model, batch, 'chosen'))

  adapted = {'task': {'model_path': folder, 'load_in_4bit': True, 'lora': {'r': 2}}}
  again = shrunk_run.make_task(make_params(trained, adapted))
  model = again.build_model()
  names = {variable.name.rpartition('/')[2] for variable in model.trainable_variables}
  assert names == {'lora_a:0', 'lora_b:0', 'kernel:0'}  # The kernel is that of the head.
  for variable in model.trainable_variables:
    variable.assign_add(np.random.default_rng(0).normal(0, 0.1, variable.shape))
  (line,) = again.check_result(model, str(tmp_path / 'second'))
  assert line.startswith('model: ')
  found = scores_of(pretrained.load_classifier(str(tmp_path / 'second/model')), batch, 'rejected')
  np.testing.assert_allclose(found, scores_of(model, batch, 'rejected'), atol=1e-4)
