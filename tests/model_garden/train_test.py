"""Model Garden's ResNet and BERT train through train.py, unmodified, with XLA, on one replica and on two."""

import json
import math
import pathlib

import pytest
import tensorflow as tf

from tests import tiers
from tests import train_processes
from tests.model_garden import tfrecords
from tests.training.loop import harness

TRAIN_STEPS = 6
STEPS_PER_LOOP = 3
BATCH_SIZE = 8
NUM_VALIDATION_EXAMPLES = 16


def resnet_overrides(folder):
  """ResNet-10 at a quarter of its width, on images of 32x32 and ten classes."""
  size = {'num_files': 1, 'num_examples': NUM_VALIDATION_EXAMPLES, 'seed': 1}
  return {
    'task': {
      'model': {
        'num_classes': 10,
        'input_size': [32, 32, 3],
        'backbone': {'resnet': {'model_id': 10, 'depth_multiplier': 0.25}},
      },
      'train_data': {
        'input_path': tfrecords.write_images(folder / 'train'),
        'global_batch_size': BATCH_SIZE,
        'shuffle_buffer_size': 64,
      },
      'validation_data': {
        'input_path': tfrecords.write_images(folder / 'validation', **size),
        'global_batch_size': BATCH_SIZE,
      },
    },
    'trainer': {
      'optimizer_config': {
        'learning_rate': {'stepwise': {'boundaries': [100], 'values': [0.01, 0.001]}},
        'warmup': {'linear': {'warmup_steps': 2}},
      }
    },
  }


def bert_overrides(folder):
  """A BERT encoder of one layer and 32 units, on sentences of 16 tokens in two classes."""
  encoder = {
    'num_layers': 1,
    'hidden_size': 32,
    'num_attention_heads': 2,
    'intermediate_size': 64,
    'vocab_size': 100,
    'max_position_embeddings': 16,
  }
  data = {'global_batch_size': BATCH_SIZE, 'seq_length': 16}
  validation_path = tfrecords.write_sentences(folder / 'validation.tfrecord', NUM_VALIDATION_EXAMPLES, seed=1)
  return {
    'task': {
      'model': {'num_classes': 2, 'encoder': {'bert': encoder}},
      'train_data': {'input_path': tfrecords.write_sentences(folder / 'train.tfrecord'), **data},
      'validation_data': {'input_path': validation_path, **data},
    },
    'trainer': {
      'optimizer_config': {
        'learning_rate': {'polynomial': {'initial_learning_rate': 0.001, 'decay_steps': 100}},
        'warmup': {'polynomial': {'warmup_steps': 2}},
      }
    },
  }


OVERRIDES = {'resnet_imagenet': resnet_overrides, 'bert/sentence_prediction': bert_overrides}
METRIC = {'resnet_imagenet': 'accuracy', 'bert/sentence_prediction': 'cls_accuracy'}


def arguments_for(experiment, folder, num_replicas):
  """The arguments of train.py; the model goes to folder/model."""
  lengths = {
    'train_steps': TRAIN_STEPS,
    'steps_per_loop': STEPS_PER_LOOP,
    'summary_interval': STEPS_PER_LOOP,
    'checkpoint_interval': STEPS_PER_LOOP,
    'validation_interval': TRAIN_STEPS,
    'validation_steps': NUM_VALIDATION_EXAMPLES // BATCH_SIZE,
  }
  overrides = OVERRIDES[experiment](folder)
  overrides['trainer'].update(lengths)
  overrides['runtime'] = {'enable_xla': True}
  if num_replicas > 1:
    overrides['runtime'].update(distribution_strategy='mirrored', num_virtual_cpus=num_replicas)
  return [
    f'--experiment={experiment}',
    '--mode=train_and_eval',
    f'--model_dir={folder / "model"}',
    f'--params_override={json.dumps(overrides)}',
  ]


def read_scalars(folder):
  """Reads TensorBoard's files back with its own reader: from tag to {step: value}."""
  from tensorboard.backend.event_processing import event_accumulator

  accumulator = event_accumulator.EventAccumulator(str(folder))
  accumulator.Reload()
  return {
    tag: {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)}
    for tag in accumulator.Tags()['tensors']
  }


@tiers.parametrize(
  'experiment, num_replicas',
  harness.cases(
    fast=[('bert/sentence_prediction', 1), ('resnet_imagenet', 2)],
    soak=[('bert/sentence_prediction', 2), ('resnet_imagenet', 1)],
  ),
  fast=1,
)
def test_trains_and_evaluates_with_xla(experiment, num_replicas, tmp_path, run_train):
  # Stock: enable_xla is ignored without GPUs, and dies with a merge_call error on two replicas.
  process = run_train(arguments_for(experiment, tmp_path, num_replicas), env=train_processes.UNOPTIMISED)
  assert process.returncode == 0, process.stderr[-6000:]
  model_dir = pathlib.Path(tmp_path / 'model')

  record = json.loads((model_dir / 'run.json').read_text())
  assert record['status'] == 'finished'
  assert record['step'] == TRAIN_STEPS
  assert record['jit_compile'] is True
  assert record['step_shape'] == ('fused' if num_replicas == 1 else 'split')
  assert record['devices'].startswith(f'{num_replicas} replica')

  events = [json.loads(line) for line in (model_dir / 'events.jsonl').read_text().splitlines()]
  trains = [event for event in events if event['event'] == 'train']
  assert [event['step'] for event in trains] == [STEPS_PER_LOOP, TRAIN_STEPS]
  assert all(math.isfinite(event['training_loss']) and event['grad_norm'] > 0 for event in trains)
  (evaluation,) = [event for event in events if event['event'] == 'eval']
  assert evaluation['step'] == TRAIN_STEPS
  assert math.isfinite(evaluation['validation_loss'])
  # All validation examples were seen, each once: the accuracy is a whole number of them.
  correct = evaluation[METRIC[experiment]] * NUM_VALIDATION_EXAMPLES
  assert correct == pytest.approx(round(correct), abs=1e-3)

  assert tf.train.latest_checkpoint(str(model_dir)) == str(model_dir / f'ckpt-{TRAIN_STEPS}')
  steps = tf.train.load_variable(str(model_dir / f'ckpt-{TRAIN_STEPS}'), 'global_step/.ATTRIBUTES/VARIABLE_VALUE')
  assert steps == TRAIN_STEPS

  training = read_scalars(model_dir / 'train')
  assert training['loss'][TRAIN_STEPS] == pytest.approx(trains[-1]['training_loss'], rel=1e-5)
  assert set(training['learning_rate']) == {STEPS_PER_LOOP, TRAIN_STEPS}
  validation = read_scalars(model_dir / 'validation')
  assert validation['loss'][TRAIN_STEPS] == pytest.approx(evaluation['validation_loss'], rel=1e-5)
