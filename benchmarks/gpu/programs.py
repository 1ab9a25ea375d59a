"""Lowers programs to HLO: training steps, an evaluation step and generation, with the plan that a GPU would have.

TensorFlow lowers for its platform CPU, whose HLO is the GPU's: the compilers of the platforms differ, not the input.
Variables become parameters and, if they are written, results that alias them.

    python -m benchmarks.gpu.programs gpt2_cudnn OUT_DIR
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import pathlib
import sys
from typing import Any
from unittest import mock

import official_ext as ext

# isort: split
import numpy as np
from official.core import train_utils
import tensorflow as tf
import tf_keras

from benchmarks.gpt2 import ours
from benchmarks.gpt2 import sizes as sizes_lib
from benchmarks.memory import ours as image_trainers
from benchmarks.memory import subjects
from official_ext.base import tf_internals
from official_ext.language.modeling import generation
from official_ext.language.modeling import lora
from official_ext.language.modeling import quantized_linear
from official_ext.training.config import definitions
from official_ext.training.devices import device_types
from official_ext.training.devices import distribute
from official_ext.training.loop import base_trainer
from official_ext.training.step import step_random

_H100 = (9, 0)  # Compute capability.


@dataclasses.dataclass(frozen=True)
class Hlo:
  """A lowered program.

  Attributes:
    text: the HLO before any optimisation.
    proto: the serialized HloModuleProto.
    plan: how the trainer runs it; ''.
  """

  text: str
  proto: bytes
  plan: str = ''


@contextlib.contextmanager
def as_gpu() -> Iterator[None]:
  """Plans, guards and attention take their branches for a GPU of an H100's compute capability.

  The mixed-precision policy of the process is restored at the end.
  """
  policy = tf_keras.mixed_precision.global_policy()
  try:
    with (
      mock.patch.object(device_types, 'device_type', lambda strategy: 'GPU'),
      mock.patch.object(device_types, 'gpu_capability', lambda: _H100),
    ):
      yield
  finally:
    tf_keras.mixed_precision.set_global_policy(policy)


def lower(function: Callable[..., Any], specs: Any) -> Hlo:
  """The HLO of a function of tensors, with its variables as parameters.

  Example:

    >>> hlo = lower(lambda x: x + 1, [tf.TensorSpec([3])])
    >>> 'f32[3]' in hlo.text, len(hlo.proto) > 0
    (True, True)
  """
  flat = tf.nest.flatten(specs)
  compiled = tf.function(
    lambda *tensors: function(*tf.nest.pack_sequence_as(specs, tensors)), jit_compile=True, autograph=False
  )
  ir = compiled.experimental_get_compiler_ir(*flat)
  return Hlo(ir(stage='hlo', platform_name='CPU'), ir(stage='hlo_serialized', platform_name='CPU'))


def lower_step(
  strategy: tf.distribute.Strategy, trainer: base_trainer.Trainer, several: bool = False, specs: Any = None
) -> Hlo:
  """The training step of a trainer: one update, or the loop over the updates of a program.

  Args:
    strategy: of the trainer.
    trainer: of any task.
    several: whether to lower the loop.
    specs: the type specs of a batch, one of several shapes; None: the specs of all batches.

  Raises:
    ValueError: the plan does not compile the step as a whole.
  """
  with strategy.scope():
    trainer.prepare_training()
  plan, step = trainer.plan, trainer.training_step
  if plan.execution != 'fused':
    raise ValueError(f'the step is {plan}')
  execution, specs = step._execution, specs or step._task_step.input_specs
  function, arguments = (lambda inputs: execution._update.run_in_xla([inputs])), [specs]
  if several:
    count = plan.steps_per_execution
    stacked = tf.nest.map_structure(lambda spec: tf.TensorSpec([count, *spec.shape], spec.dtype), specs)
    function, arguments = execution._run_steps, [stacked]
  found = []

  def of_replica():
    with tf.init_scope():
      found.append(lower(function, arguments))

  tf.function(lambda: strategy.run(of_replica), autograph=False).get_concrete_function()
  return dataclasses.replace(found[0], plan=str(plan))


def lower_on_replica(strategy: tf.distribute.Strategy, trainer: base_trainer.Trainer, part: str) -> Hlo:
  """A program of the training step on one of several replicas: its 'passes', or its 'update' after the sum.

  Raises:
    ValueError: the plan does not compile both.
  """
  with strategy.scope():
    trainer.prepare_training()
  plan, step = trainer.plan, trainer.training_step
  if plan.execution != 'split' or not plan.compiles_update:
    raise ValueError(f'the step is {plan}')
  execution, specs = step._execution, step._task_step.input_specs

  def lower_part(update_specs):
    with tf.init_scope():
      if part == 'passes':
        return lower(lambda inputs: tf.nest.flatten(execution._packed_passes([inputs])), [specs])
      return lower(execution._finish_step, update_specs)

  return dataclasses.replace(execution.before_update([specs], lower_part), plan=str(plan))


# Language models.

_LLAMA: Mapping[str, Any] = {
  'model_type': 'llama',
  'vocab_size': 32000,
  'hidden_size': 2048,
  'intermediate_size': 5632,
  'num_attention_heads': 32,
  'num_key_value_heads': 4,
  'num_hidden_layers': 2,
  'max_position_embeddings': 2048,
}
_MOE = {
  **_LLAMA,
  'hidden_size': 1024,
  'num_attention_heads': 16,
  'num_experts': 8,
  'num_experts_per_tok': 2,
  'moe_intermediate_size': 1408,
  'router_aux_loss_coef': 0.01,
}
_TINY = {
  'vocab_size': 512,
  'hidden_size': 256,
  'intermediate_size': 512,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'moe_intermediate_size': 256,
}


@dataclasses.dataclass(frozen=True)
class Scale:
  """The size of a program: `FULL` for the table, `SMALL` for tests, which has every operation of the full one.

  Attributes:
    is_small: whether widths, vocabularies and images are small too.
    rows: of a batch of texts.
    length: tokens of a row.
    images: of a batch.
  """

  is_small: bool
  rows: int
  length: int
  images: int


FULL, SMALL = Scale(False, 8, 1024, 64), Scale(True, 4, 128, 2)


def _decoder(scale, **fields):
  if scale.is_small:
    fields |= {name: value for name, value in _TINY.items() if name in fields}
  return ext.DecoderConfig(**fields)


def _gpt2_trainer(scale, num_replicas=1, **options):
  sizes = dataclasses.replace(sizes_lib.GPT2, layers=2, width=256, heads=4, vocabulary=512, length=scale.length)
  sizes, rows = (sizes, scale.rows) if scale.is_small else (sizes_lib.GPT2, 32)
  return ours.make_trainer(sizes, num_replicas * rows, **options)


def _gpt2(scale, several=False, **options):
  return lower_step(*_gpt2_trainer(scale, **options), several=several)


def _gpt2_replica(scale, part):
  """GPT-2 on two GPUs, each with the rows of the program for one."""
  (cpu,) = tf.config.list_physical_devices('CPU')
  if len(tf.config.get_logical_device_configuration(cpu) or ()) < 2:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  two = tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=['CPU:0', 'CPU:1'])
  with mock.patch.object(distribute, 'get_strategy', lambda runtime: two):
    return lower_on_replica(*_gpt2_trainer(scale, num_replicas=2, attn_implementation='cudnn'), part)


def _rows_trainer(scale, config, **options):
  return ours.language_trainer(config, scale.rows, scale.length, steps_per_loop=10, **options)


def _nf4(scale):
  def prepare(model):
    storage = quantized_linear.QuantizationConfig(method='nf4')
    lora.attach(model, lora.LoraConfig(r=16), storage, frozen_dtype='bfloat16')

  return lower_step(*_rows_trainer(scale, _decoder(scale, **_LLAMA), prepare=prepare))


def _moe(scale):
  return lower_step(*_rows_trainer(scale, _decoder(scale, **_MOE)))


def _scan_layers(scale):
  config = _decoder(scale, **{**_LLAMA, 'num_hidden_layers': 4, 'scan_layers': True})
  return lower_step(*_rows_trainer(scale, config))


def _evaluation(scale):
  """The forward pass and the loss of an evaluation, without updates."""
  strategy, trainer = _rows_trainer(scale, _decoder(scale, **_LLAMA))
  with strategy.scope():
    trainer.prepare_training()

  def loss(inputs):
    with step_random.step_key(step_random.StepKey(seed=0, step=tf.constant(0, tf.int64), replica=0, num_replicas=1)):
      return trainer.task.validation_step(inputs, trainer.model, [])[trainer.task.loss]

  return lower(loss, [trainer.training_step._task_step.input_specs])


def _generation(scale, count=1, **options):
  """Continuations of prompts by one program, as `Generator` and `grpo` compile it."""
  tf_keras.mixed_precision.set_global_policy('mixed_bfloat16')
  model = ext.LanguageModel(_decoder(scale, **_LLAMA))
  config = generation.GenerationConfig(max_new_tokens=8 if scale.is_small else 128, **options)
  prompts = tf.TensorSpec([scale.rows // count, 16 if scale.is_small else 128], tf.int32)
  return lower(
    lambda ids, mask, seed: tuple(generation.sample(model, config, ids, mask, seed, count=count)),
    [prompts, prompts, tf.TensorSpec([2], tf.int64)],
  )


def next_tokens(scale: Scale, count: int) -> Hlo:
  """The program of a conversation that draws `count` tokens after the first one."""
  with as_gpu():
    tf_keras.mixed_precision.set_global_policy('mixed_bfloat16')
    model = ext.LanguageModel(_decoder(scale, **_LLAMA))
    config = generation.GenerationConfig(max_new_tokens=64, temperature=0.8, top_p=0.9)
    prompt, seed = tf.TensorSpec([1, 128], tf.int32), tf.TensorSpec([2], tf.int64)
    first = tf.function(lambda *inputs: generation.start(model, config, *inputs), autograph=False)
    state = first.get_concrete_function(prompt, prompt, seed).structured_outputs
    specs = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), state)
    return lower(lambda state: generation.sample_more(model, config, state, count), [specs])


# Model Garden.


def _resnet(scale):
  size = {'IMAGE_SIZE': 64} if scale.is_small else {}
  with mock.patch.multiple(subjects, **size) if size else contextlib.nullcontext():
    return lower_step(*image_trainers._resnet(subjects.SUBJECTS['resnet50'], 'plain', scale.images))


def _garden_trainer(params: Any, task: Any) -> tuple[tf.distribute.Strategy, base_trainer.Trainer]:
  params = definitions.upgrade(params)
  params.trainer.train_steps, params.trainer.steps_per_loop = 10**6, 10
  params.runtime.mixed_precision_dtype = 'bfloat16'
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    made = task(params.task)
    return strategy, train_utils.create_trainer(
      params, made, train=True, evaluate=False, trainer_cls=base_trainer.Trainer
    )


def _bert_trainer(scale, lengths=()):
  """BERT-Base's classifier on rows of 128 tokens, or on batches of several lengths."""
  from official.nlp.configs import finetuning_experiments  # pylint: disable=g-import-not-at-top
  from official.nlp.tasks import sentence_prediction  # pylint: disable=g-import-not-at-top

  params = finetuning_experiments.bert_sentence_prediction()
  params.task.train_data.global_batch_size = scale.rows if scale.is_small else 32
  params.task.model.num_classes = 2
  optimizer = params.trainer.optimizer_config
  optimizer.warmup.polynomial.warmup_steps, optimizer.learning_rate.polynomial.decay_steps = 100, 10**6
  encoder = params.task.model.encoder.bert
  if scale.is_small:
    encoder.num_layers, encoder.hidden_size, encoder.intermediate_size, encoder.num_attention_heads = 2, 128, 256, 2
  lengths = lengths or (params.task.train_data.seq_length,)

  class Rows(sentence_prediction.SentencePredictionTask):
    """Model Garden's task on rows without padding."""

    def build_inputs(self, data, input_context=None):
      def batches(length):
        row = {
          'input_word_ids': tf.ones([length], tf.int32),
          'input_mask': tf.ones([length], tf.int32),
          'input_type_ids': tf.zeros([length], tf.int32),
          'label_ids': tf.constant(1),
        }
        return tf.data.Dataset.from_tensors(row).repeat().batch(data.global_batch_size, drop_remainder=True)

      return functools.reduce(lambda first, rest: first.concatenate(rest), map(batches, lengths))

  return _garden_trainer(params, Rows)


def _bert(scale):
  return lower_step(*_bert_trainer(scale))


def bert_buckets(scale: Scale, lengths: Sequence[int]) -> list[Hlo]:
  """The programs of BERT-Base's classifier on batches whose rows have one of several lengths: one for each."""
  with as_gpu():
    strategy, trainer = _bert_trainer(scale, lengths)
    with strategy.scope():
      trainer.prepare_training()
    specs = trainer.training_step._task_step.input_specs
    of_length = lambda length: tf.nest.map_structure(
      lambda spec: tf.TensorSpec([length if size is None else size for size in spec.shape], spec.dtype), specs
    )
    return [lower_step(strategy, trainer, specs=of_length(length)) for length in lengths]


def _retinanet(scale):
  """RetinaNet on ResNet-50 with images of 640 pixels."""
  from official.vision.configs import retinanet as configs  # pylint: disable=g-import-not-at-top
  from official.vision.dataloaders import retinanet_input  # pylint: disable=g-import-not-at-top
  from official.vision.tasks import retinanet  # pylint: disable=g-import-not-at-top

  params = configs.retinanet_resnetfpn_coco()
  size, rows = (128, 2) if scale.is_small else (640, 16)
  params.task.init_checkpoint = params.task.annotation_file = None
  params.task.model.input_size = [size, size, 3]
  params.task.model.norm_activation.use_sync_bn = False
  params.task.train_data.global_batch_size = rows

  class RandomImages(retinanet.RetinaNetTask):
    """Model Garden's task on the same example."""

    def build_inputs(self, data, input_context=None):
      model, parser = self.task_config.model, data.parser
      anchor = model.anchor
      parse = retinanet_input.Parser(
        output_size=model.input_size[:2],
        min_level=model.min_level,
        max_level=model.max_level,
        num_scales=anchor.num_scales,
        aspect_ratios=anchor.aspect_ratios,
        anchor_size=anchor.anchor_size,
        max_num_instances=parser.max_num_instances,
      ).parse_fn(True)
      rng = np.random.default_rng(0)
      example = {
        'image': rng.integers(0, 255, [size, size, 3]).astype(np.uint8),
        'source_id': '1',
        'height': size,
        'width': size,
        'groundtruth_classes': np.array([1, 2], np.int64),
        'groundtruth_is_crowd': np.zeros(2, bool),
        'groundtruth_area': np.array([100.0, 100.0], np.float32),
        'groundtruth_boxes': np.array([[0.1, 0.1, 0.5, 0.5], [0.2, 0.4, 0.9, 0.8]], np.float32),
      }
      dataset = tf.data.Dataset.from_tensors(example).repeat().map(parse)
      return dataset.batch(data.global_batch_size, drop_remainder=True)

  return lower_step(*_garden_trainer(params, RandomImages))


PROGRAMS: Mapping[str, Callable[[Scale], Hlo]] = {
  'gpt2_eager': lambda scale: _gpt2(scale, attn_implementation='eager'),
  'gpt2_cudnn': lambda scale: _gpt2(scale, attn_implementation='cudnn'),
  'gpt2_steps': lambda scale: _gpt2(scale, several=True, attn_implementation='cudnn'),
  'gpt2_replica': lambda scale: _gpt2_replica(scale, 'passes'),
  'gpt2_replica_update': lambda scale: _gpt2_replica(scale, 'update'),
  'nf4_lora': _nf4,
  'moe': _moe,
  'scan_layers': _scan_layers,
  'evaluation': _evaluation,
  'generate_greedy': _generation,
  'generate_sampled': lambda scale: _generation(scale, temperature=0.8, top_p=0.9),
  'grpo_sampling': lambda scale: _generation(scale, count=4, temperature=1.0),
  'resnet50': _resnet,
  'bert': _bert,
  'retinanet': _retinanet,
}


def program(name: str, scale: Scale = FULL) -> Hlo:
  """Lowers one of `PROGRAMS`."""
  with as_gpu():
    return PROGRAMS[name](scale)


def main(name: str, folder: str) -> None:
  """Writes NAME.hlo.txt and NAME.pb into a folder."""
  found = program(name)
  target = pathlib.Path(folder)
  target.mkdir(parents=True, exist_ok=True)
  (target / f'{name}.hlo.txt').write_text(found.text, encoding='utf-8')
  (target / f'{name}.pb').write_bytes(found.proto)
  print(f'{name}: {found.plan or "a program"}')


if __name__ == '__main__':
  main(*sys.argv[1:])
