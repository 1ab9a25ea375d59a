"""Runs with small models to be tried, made by a script in a process that has TensorFlow."""

import os
import pathlib

from tests import train_processes
from tests.operations.runs import folders

TEMPLATE = (
  '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}'
  '{% if add_generation_prompt %}<|assistant|>{% endif %}'
)
# A SavedModel that adds up every tenth pixel, and a language model whose weights are drawn at random.
_SCRIPT = """
import sys
import tensorflow as tf
import official_ext as ext
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import pretrained

root = sys.argv[1]
module = tf.Module()
module.weights = tf.Variable([[float(i % 10 == j) for j in range(10)] for i in range(64)])
serve = tf.function(lambda pixels: {'logits': pixels @ module.weights},
                    input_signature=[tf.TensorSpec([None, 64], tf.float32, 'pixels')])
tf.saved_model.save(module, f'{root}/digits/export/100', signatures=serve)
marks = ['<|user|>', '<|assistant|>', '<|system|>', '<|end|>']
tokenizer = ext.train_tokenizer(['hello there, äöü'] * 3, 275, marks, TEMPLATE, folder=f'{root}/.tokens')
config = decoder_config.DecoderConfig(
  vocab_size=len(tokenizer), hidden_size=32, intermediate_size=44, num_hidden_layers=2, max_position_embeddings=256,
  num_attention_heads=4, num_key_value_heads=2)
for number, name in enumerate(('writer/model', 'other/model')):
  model = decoder.LanguageModel(config)
  for variable in model.trainable_variables:
    variable.assign(tf.random.stateless_normal(variable.shape, [number, variable.shape.rank], stddev=0.3))
  pretrained.save(model, f'{root}/{name}', tokenizer=tokenizer)
model = pretrained.load(f'{root}/writer/model')
ext.lora.attach(model, ext.LoraConfig(r=2), ext.QuantizationConfig(method='nf4'))
for variable in model.trainable_variables:
  variable.assign(tf.random.stateless_normal(variable.shape, [3, 3], stddev=0.3))
ext.peft_folders.save(model, f'{root}/tuned/adapter')
"""


def make(root: pathlib.Path, server: train_processes.Server, scratch: pathlib.Path) -> None:
  """Makes runs in a folder, which have finished: `digits`, `writer`, `other`, `tuned`, which has adapters over 4 bits
  of `writer`, and `plain`, which has nothing.

  Args:
    root: the folder.
    server: of `train_server`.
    scratch: a folder for the script.
  """
  for number, name in enumerate(('digits', 'writer', 'other', 'plain', 'tuned')):
    events = [folders.event('eval', 100, accuracy=0.5 + number / 10)]
    folders.make(root, name, events, identity=folders.ended_process(), status='finished', step=100)
  (root / 'digits' / 'ckpt-100.index').write_bytes(b'')
  done = train_processes.Script(server, scratch, f'TEMPLATE = {TEMPLATE!r}\n{_SCRIPT}', [str(root)]).finish()
  assert done.returncode == 0, done.stderr
  assert os.path.isfile(root / 'other' / 'model' / 'config.json')
