"""How long Model Garden's experiments take to their first step, on one replica and on two.

A start is the trace that plans the step, the trace of the program, its compilation and one step, at the registered
depth of the model, on small inputs. Its processor time is measured in units of that of `resnet_imagenet` on one
replica, compiled by XLA, measured before, so that the table holds on other machines and next to other processes. Each
start has a separate process: programs, up to 2 GB each, are freed with their process alone.
"""

import json
import pathlib
import time

import pytest
import tensorflow as tf

from official_ext.base import tf_internals
from tests import train_processes
from tests.model_garden import all_experiments_test
from tests.model_garden import tfrecords
from tests.model_garden.all_experiments_test import OPEN
from tests.model_garden.all_experiments_test import SMALLER
from tests.model_garden.all_experiments_test import parse

IMAGE = ('task.model.input_size=[64, 64, 3]', 'task.model.num_classes=4')
MASK = (*IMAGE, 'task.train_data.output_size=[64, 64]', 'task.train_data.crop_size=[]')
# Pools the whole map of features, a sixteenth of the image.
CITY = (*MASK, 'task.model.decoder.aspp.pool_kernel_size=[64, 64]')
BOX = ('task.model.input_size=[128, 128, 3]',)
TOKENS = ('task.train_data.seq_length=16',)
MASKED = (*TOKENS, 'task.train_data.max_predictions_per_seq=4')
# Reads files, not TensorFlow Datasets. `{folder}` is the folder of the data.
NO_TFDS = ('task.train_data.tfds_name=', 'task.train_data.tfds_split=')
SENTENCES = (
  *TOKENS,
  *NO_TFDS,
  'task.train_data.text_fields=[sentence1, sentence2]',
  'task.train_data.vocab_file={folder}/vocab.txt',
)
DOCUMENTS = (
  *MASKED,
  *NO_TFDS,
  'task.train_data.text_field_names=[text]',
  'task.train_data.use_next_sentence_label=false',
  'task.train_data.vocab_file_path={folder}/vocab.txt',
)
VIDEO = (
  'task.train_data.feature_shape=[4, 32, 32, 3]',
  'task.train_data.min_image_size=32',
  'task.train_data.temporal_stride=1',
)
# The batch is counted in tokens: two pairs of sentences.
PAIRS = (
  'task.train_data.global_batch_size=32',
  'task.train_data.max_seq_length=16',
  *NO_TFDS,
)
# Lengths vary, and XLA cannot compile the step.
BUCKETS = ('task.train_data.seq_bucket_lengths=[16]', 'runtime.enable_xla=false')

WRITERS = {
  'images': lambda folder: tfrecords.write_images(folder, num_examples=16, image_size=64, num_classes=4),
  'masks': lambda folder: tfrecords.write_masks(folder / 'masks'),
  'boxes': lambda folder: tfrecords.write_boxes(folder / 'boxes'),
  'sentences': lambda folder: tfrecords.write_sentences(folder / 'sentences'),
  'texts': lambda folder: tfrecords.write_texts(folder / 'texts'),
  'tokens': lambda folder: tfrecords.write_masked_tokens(folder / 'tokens'),
  'translations': lambda folder: tfrecords.write_translations(folder / 'translations'),
  'videos': lambda folder: tfrecords.write_videos(folder / 'videos'),
}

UNIT = ('resnet_imagenet', 'images', (*IMAGE, 'runtime.enable_xla=true'))
FACTOR = 2.0

# Name: (kind of its data, settings, units on one replica, units on two), measured.
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...], float, float]] = {
  'bert/pretraining': ('tokens', MASKED, 1.84, 2.71),
  'bert/pretraining_dynamic': ('tokens', BUCKETS, 1.35, 2.57),
  'bert/sentence_prediction': ('sentences', TOKENS, 2.23, 1.94),
  'bert/sentence_prediction_text': ('texts', SENTENCES, 2.21, 2.77),
  'bert/squad': ('tokens', TOKENS, 2.31, 2.07),
  'bert/tagging': ('tokens', TOKENS, 2.4, 1.97),
  'bert/text_wiki_pretraining': ('texts', DOCUMENTS, 2.47, 2.36),
  'cascadercnn_spinenet_coco': ('boxes', BOX, 6.15, 16.36),
  'deit_imagenet_pretrain': ('images', IMAGE, 1.06, 1.74),
  'electra/pretraining': ('tokens', MASKED, 3.95, 5.92),
  'fasterrcnn_resnetfpn_coco': ('boxes', BOX, 2.21, 6.25),
  'image_classification': ('images', IMAGE, 0.42, 0.99),
  'maskrcnn_mobilenet_coco': ('boxes', BOX, 2.37, 6.43),
  'maskrcnn_resnetfpn_coco': ('boxes', BOX, 6.55, 8.25),
  'maskrcnn_spinenet_coco': ('boxes', BOX, 4.09, 11.37),
  'mnv2_deeplabv3_cityscapes': ('masks', CITY, 1.1, 3.67),
  'mnv2_deeplabv3_pascal': ('masks', MASK, 0.94, 3.54),
  'mnv2_deeplabv3plus_cityscapes': ('masks', CITY, 0.96, 3.6),
  'mobilenet_imagenet': ('images', IMAGE, 0.45, 1.02),
  'resnet_rs_imagenet': ('images', IMAGE, 1.14, 2.66),
  'retinanet': ('boxes', BOX, 1.38, 6.02),
  'retinanet_mobile_coco': ('boxes', BOX, 4.88, 17.22),
  'retinanet_resnetfpn_coco': ('boxes', BOX, 1.31, 3.34),
  'retinanet_spinenet_coco': ('boxes', BOX, 4.04, 17.85),
  'revnet_imagenet': ('images', IMAGE, 0.47, 1.41),
  'seg_deeplabv3_pascal': ('masks', MASK, 2.79, 8.93),
  'seg_deeplabv3plus_cityscapes': ('masks', CITY, 2.63, 8.55),
  'seg_deeplabv3plus_pascal': ('masks', MASK, 2.57, 9.03),
  'seg_resnetfpn_pascal': ('masks', MASK, 1.35, 4.23),
  'semantic_segmentation': ('masks', MASK, 0.63, 2.3),
  'video_classification': ('videos', VIDEO, 0.43, 1.07),
  'video_classification_kinetics400': ('videos', VIDEO, 0.53, 1.28),
  'video_classification_kinetics600': ('videos', VIDEO, 0.59, 1.46),
  'video_classification_kinetics700': ('videos', VIDEO, 0.56, 1.45),
  'video_classification_kinetics700_2020': ('videos', VIDEO, 0.56, 1.38),
  'video_classification_ucf101': ('videos', (*VIDEO, *NO_TFDS), 0.47, 1.31),
  'vit_imagenet_finetune': ('images', IMAGE, 0.76, 1.51),
  'vit_imagenet_pretrain': ('images', IMAGE, 0.75, 1.48),
  'wmt_transformer/large': ('translations', PAIRS, 2.73, 3.71),
}

# The slow tests start few experiments: each start keeps about 1 GB, because compiled programs are never freed. The soak
# tests start the others.
SLOW = {
  ('mobilenet_imagenet', 1),
  ('mobilenet_imagenet', 2),
  ('mnv2_deeplabv3_pascal', 1),
  ('mnv2_deeplabv3_pascal', 2),
  ('bert/sentence_prediction', 1),
  ('bert/sentence_prediction', 2),
  ('bert/pretraining_dynamic', 1),
}
STARTS = [
  pytest.param(name, num_replicas, marks=pytest.mark.slow if (name, num_replicas) in SLOW else pytest.mark.soak)
  for name in EXPERIMENTS
  for num_replicas in (1, 2)
]


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  return {kind: write(folder) for kind, write in WRITERS.items()}


# The process of a start: name of the experiment, path of its data, settings, number of replicas.
SCRIPT = """
import json
import sys
import pytest
from official.common import registry_imports
from tests import tensorflow_import
from tests.model_garden import conftest
from tests.model_garden import start_times_test
import tensorflow as tf

tensorflow_import.configure(tf)
with pytest.MonkeyPatch.context() as patch:
  conftest.make_weights_of_zeros(patch)
  print(start_times_test.start_seconds(*json.loads(sys.argv[1])))
"""


def start_seconds(name, path, settings, num_replicas):
  """Builds a trainer in this process, and returns the processor seconds of its first step."""
  from official.core import task_factory

  from official_ext.training.loop import train_lib

  folder = pathlib.Path(path).parent
  chosen = (
    *OPEN.get(name, ()),
    *SMALLER.get(name, ()),
    f'task.train_data.input_path={path}',
    'task.train_data.global_batch_size=2',
    'task.train_data.shuffle_buffer_size=2',
    'task.init_checkpoint=""',
    *settings,
    'trainer.train_steps=1',
    'trainer.steps_per_loop=1',
  )
  places = {'folder': folder, 'sentencepiece_model': folder / 'sentencepiece.model'}
  by_field = {setting.partition('=')[0]: setting.format_map(places) for setting in chosen}  # The last one counts.
  params = parse(name, list(by_field.values()))
  devices = [device.name for device in tf.config.list_logical_devices('CPU')[:num_replicas]]
  if num_replicas == 1:
    strategy = tf.distribute.OneDeviceStrategy(devices[0])
  else:
    strategy = tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=devices)
  with strategy.scope():
    task = task_factory.get_task(params.task)
  trainer = train_lib.build_trainer(strategy, task, params, None, train=True, evaluate=False)
  begin = time.process_time()
  trainer.train(tf.constant(1))
  return time.process_time() - begin


@pytest.fixture(scope='module')
def start(train_server, tmp_path_factory):
  """start(name, path, settings, num_replicas) -> the seconds of `start_seconds` in a new process."""

  def start(*arguments):
    folder = tmp_path_factory.mktemp('start')
    script = train_processes.Script(
      train_server(), folder, SCRIPT, [json.dumps(arguments)], train_processes.UNOPTIMISED
    )
    done = script.finish(timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    return float(done.stdout.split()[-1])

  return start


@pytest.fixture(scope='module')
def unit(data, start):
  name, kind, settings = UNIT
  return start(name, data[kind], settings, 1)


def test_every_experiment_has_a_row():
  names = [UNIT[0], *EXPERIMENTS]
  assert sorted(names) == sorted(all_experiments_test.EXPERIMENTS)


@pytest.mark.parametrize(('name', 'num_replicas'), STARTS)
def test_start_takes_no_longer_than_it_did(name, num_replicas, data, unit, start):
  kind, settings, *expected = EXPERIMENTS[name]
  units = start(name, data[kind], settings, num_replicas) / unit
  print(f'{name} on {num_replicas}: {units:.2f} units of {unit:.1f} s')
  assert units < FACTOR * expected[num_replicas - 1]
