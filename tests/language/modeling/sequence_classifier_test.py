"""Models that score texts: transformers' scores, in and out, from a language model's folder too."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import pretrained

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from safetensors.numpy import load_file  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from tests import tiers  # noqa: E402
from tests.language.modeling import checkpoints  # noqa: E402

IDS = np.random.default_rng(0).integers(3, 67, (3, 9)).astype(np.int32)
# A whole text, one that is filled up behind, and one that is in front.
MASK = np.array([[1] * 9, [1] * 6 + [0] * 3, [0] * 4 + [1] * 5], np.int32)


def scores_of(model, padded_ids=IDS):
  compiled = tf.function(lambda ids, mask: model(ids, segments=mask), jit_compile=True)
  eager = model(padded_ids, segments=MASK).numpy()
  np.testing.assert_allclose(compiled(padded_ids, MASK).numpy(), eager, atol=1e-5)
  return eager


def scores_of_transformers(folder):
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation='eager').eval()
  ids = np.where(MASK, IDS, 0)  # It finds a text's end by the padding's token.
  positions = np.maximum(np.cumsum(MASK, axis=1) - 1, 0)
  with torch.no_grad():
    found = model(
      torch.tensor(ids).long(), attention_mask=torch.tensor(MASK), position_ids=torch.tensor(positions).long()
    )
  return found.logits.numpy()


@tiers.parametrize('name', ['llama', 'gemma3', pytest.param('gpt2', marks=pytest.mark.soak)], fast=1)
def test_scores_are_those_of_transformers_in_and_out(tmp_path, name):
  torch.manual_seed(0)
  configuration = checkpoints.config(name, num_labels=3, pad_token_id=0)
  theirs = transformers.AutoModelForSequenceClassification.from_config(configuration)
  theirs.save_pretrained(tmp_path / 'theirs')
  ours = pretrained.load_classifier(str(tmp_path / 'theirs'), num_labels=3)
  np.testing.assert_allclose(scores_of(ours), scores_of_transformers(tmp_path / 'theirs'), atol=1e-5)
  pretrained.save(ours, str(tmp_path / 'ours'))
  difference = scores_of_transformers(tmp_path / 'ours') - scores_of_transformers(tmp_path / 'theirs')
  assert np.abs(difference).max() == 0.0
  with pytest.raises(errors.UserError, match=r'score.weight has the shape \(3, 32\); the configuration says \(1, 32\)'):
    pretrained.load_classifier(str(tmp_path / 'theirs'))


@tiers.parametrize('name', ['qwen3', 'llama_tied'], fast=1)
def test_a_language_model_gets_a_new_head(tmp_path, name):
  theirs = checkpoints.random_model(checkpoints.config(name))
  theirs.save_pretrained(tmp_path / 'language_model')
  model = pretrained.load_classifier(str(tmp_path / 'language_model'))
  assert isinstance(model, decoder.SequenceClassifier) and model.score.kernel.numpy().std() > 0
  language_model = pretrained.load(str(tmp_path / 'language_model'))
  np.testing.assert_array_equal(model.decoder(IDS)[0], language_model.decoder(IDS)[0])
  pretrained.save(model, str(tmp_path / 'classifier'))
  np.testing.assert_allclose(scores_of_transformers(tmp_path / 'classifier'), scores_of(model), atol=1e-5)
  with pytest.raises(errors.UserError, match=r'the tensor (lm_head.weight is missing|score.weight has no place here)'):
    pretrained.load(str(tmp_path / 'classifier'))


def test_a_classifier_keeps_its_labels_and_is_never_given_another_head(tmp_path):
  sizes = dict(vocab_size=67, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_key_value_heads=4)
  config = decoder_config.DecoderConfig(**sizes, num_attention_heads=4)
  folder = tmp_path / 'first'
  pretrained.save(decoder.SequenceClassifier(config, 2), str(folder))
  path = folder / 'config.json'
  labels = {'id2label': {'0': 'bad', '1': 'good'}, 'label2id': {'bad': 0, 'good': 1}}
  path.write_text(json.dumps({**json.loads(path.read_text()), **labels}))
  model = pretrained.load_classifier(str(folder), num_labels=2)
  pretrained.save(model, str(tmp_path / 'second'))
  assert labels.items() <= json.loads((tmp_path / 'second/config.json').read_text()).items()
  model.num_labels = 1
  model.score = decoder.SequenceClassifier(config, 1).score
  pretrained.save(model, str(tmp_path / 'third'))
  assert json.loads((tmp_path / 'third/config.json').read_text())['id2label'] == {'0': 'LABEL_0'}

  tensors = load_file(folder / 'model.safetensors')
  del tensors['score.weight']
  save_file(tensors, folder / 'model.safetensors')
  with pytest.raises(errors.UserError, match='the tensor score.weight is missing$'):
    pretrained.load_classifier(str(folder), num_labels=2)


def test_padding_on_either_side_changes_no_score():
  config = decoder_config.DecoderConfig(
    vocab_size=67,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
  )
  model = decoder.SequenceClassifier(config, 2)
  alone = model(IDS[1:2, :6]).numpy()
  np.testing.assert_allclose(model(IDS[1:2], segments=MASK[1:2]).numpy(), alone, atol=1e-6)
  shifted = np.roll(IDS[1:2], 3, axis=1)
  np.testing.assert_allclose(model(shifted, segments=np.roll(MASK[1:2], 3, axis=1)).numpy(), alone, atol=1e-6)
