"""Models that a folder of Hugging Face would represent as others are refused before anything is written."""

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import lora
from official_ext.language.modeling import mlp
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained

CONFIG = decoder_config.DecoderConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2)


class Louder(decoder.Block):
  def call(self, x, context):
    return super().call(2 * x, context)


class LouderMLP(mlp.MLP):
  def call(self, x):
    return 2 * super().call(x)


class TwoInputs(decoder.LanguageModel):
  def call(self, input_ids, loudness=1.0, **kwargs):
    return loudness * super().call(input_ids, **kwargs)


def with_louder_mlp():
  model = decoder.LanguageModel(CONFIG)
  model.decoder.blocks[1].mlp = LouderMLP(CONFIG, tf_keras.initializers.Zeros, name='decoder/blocks/1/mlp')
  return model


def with_head():
  model = decoder.LanguageModel(CONFIG)
  model.value_head = tf_keras.layers.Dense(1)
  model.value_head.build((None, 16))
  return model


def with_linear_head():
  model = decoder.LanguageModel(CONFIG)
  model.value_head = layers.Linear(16, 1, False, 'zeros', name='value_head')
  return model


def with_second_decoder():
  """Its weights have the names of the first one's."""
  model = decoder.LanguageModel(CONFIG)
  model.other = decoder.Decoder(CONFIG)
  return model


def with_variable():
  model = decoder.LanguageModel(CONFIG)
  model.temperatures = [{'first': tf.Variable(1.0, name='temperature')}]
  return model


def with_replaced_call():
  model = decoder.LanguageModel(CONFIG)
  model.decoder.norm.call = lambda x: x
  return model


CASES = {
  'block': (lambda: decoder.LanguageModel(CONFIG, Louder), r'decoder/blocks/0, a tests\..*\.Louder: '),
  'mlp': (with_louder_mlp, r'decoder/blocks/1/mlp, a tests\..*\.LouderMLP: '),
  'inputs': (lambda: TwoInputs(CONFIG), r'the model is a tests\..*\.TwoInputs; '),
  'head': (with_head, r'dense\S*, a tf_keras\..*\.Dense: '),
  'linear head': (with_linear_head, 'value_head/kernel: llama has no tensor for this weight'),
  'decoder': (with_second_decoder, r'the weight decoder/\S+, and \d+ more, which lies outside'),
  'variable': (with_variable, 'the weight temperature:0, which lies outside of the decoder and its head'),
  'call': (with_replaced_call, '`call` of decoder/norm was replaced'),
  'classifier': (
    lambda: decoder.SequenceClassifier(CONFIG, 2, Louder),
    r'decoder/blocks/0, a tests\..*\.Louder: ',
  ),
}


@pytest.mark.parametrize('name', CASES)
def test_a_model_that_a_folder_would_represent_as_another_is_not_saved(name, tmp_path):
  make, message = CASES[name]
  with pytest.raises(errors.UserError, match=message) as refused:
    pretrained.save(make(), str(tmp_path / 'folder'))
  assert '\n' not in str(refused.value) and not (tmp_path / 'folder').exists()


@pytest.mark.parametrize('name', ['block', 'head', 'linear head', 'variable', 'classifier'])
def test_adapters_beside_what_their_folder_would_lose_are_not_saved(name, tmp_path):
  model = CASES[name][0]()
  lora.attach(model.decoder, lora.LoraConfig(r=2))
  with pytest.raises(errors.UserError, match=str(tmp_path)) as refused:
    peft_folders.save(model, str(tmp_path / 'folder'))
  assert '\n' not in str(refused.value) and not (tmp_path / 'folder').exists()
  peft_folders.save(model.decoder, str(tmp_path / 'adapters_alone'))


def test_a_copy_with_other_classes_is_no_merged_copy():
  model = decoder.LanguageModel(CONFIG, Louder)
  lora.attach(model, lora.LoraConfig(r=2))

  def make():
    plain = decoder.LanguageModel(CONFIG)
    lora.attach(plain, lora.LoraConfig(r=2))
    return plain

  with pytest.raises(errors.UserError, match=r'decoder/blocks/0 is a tests\..*\.Louder.*a official_ext.*\.Block'):
    lora.merged_copy(model, make)


@pytest.mark.parametrize('fields', [{}, {'scan_layers': True}, {'tie_word_embeddings': True}])
def test_models_of_the_library_are_represented(fields, tmp_path):
  model = decoder.LanguageModel(CONFIG.replace(**fields))
  model.compile('adam', metrics=['accuracy'])  # Its state computes nothing.
  model(tf.zeros([1, 4], tf.int32))
  pretrained.check_representable(model, 'here')
  lora.attach(model, lora.LoraConfig(r=2))
  pretrained.check_representable(model, 'here')
  lora.merge(model)
  pretrained.save(model, str(tmp_path))
