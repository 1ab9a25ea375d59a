"""LoRA over weights in NF4 by this library's trainer."""

import pathlib
import tempfile

import official_ext as ext

# isort: split
from benchmarks.peers import protocol
from benchmarks.peers.runners import language_models
from benchmarks.peers.runners import tasks
from official_ext.training.loop import base_trainer

LAYERS, WIDTH, RANK, ALPHA = 8, 512, 8, 16.0


def measurement(work: None) -> protocol.Measurement:
  """Steps."""
  del work
  rows = language_models.rows()

  class Task(ext.Task):
    """Next tokens of the same rows."""

    def build_model(self):
      with tempfile.TemporaryDirectory() as folder:
        language_models.make_folder(pathlib.Path(folder), LAYERS, WIDTH)
        model = ext.pretrained.load(folder)
      quantization = ext.QuantizationConfig(method='nf4', double_quantization=True)
      ext.lora.attach(model, ext.LoraConfig(r=RANK, lora_alpha=ALPHA), quantization)
      return model

    def build_inputs(self, params, input_context=None):
      return ext.build_dataset(ext.ArraySource({'x': rows.inputs, 'label': rows.labels}), params, input_context)

    def build_metrics(self, training=True):
      return []

    def forward(self, inputs, model, training):
      return ext.losses.label(model(inputs['x'], training=training), inputs['label']), {}

  params = tasks.experiment(rows, steps_per_loop=2)
  strategy, trainer = tasks.make_trainer(rows, params, Task, base_trainer.Trainer)
  return tasks.measured(rows, strategy, trainer, 2, 'train', lambda: str(trainer.plan))
