"""Runs from event files that TensorBoard's own writer and PyTorch's have written."""

import math
import time

import numpy as np
import pytest

from official_ext.operations.imports import tensorboard_files
from tests.operations.imports import sources


def read(source):
  """The runs' contents by name."""
  found = [run.read() for run in tensorboard_files.find_source_runs(str(source))]
  return {each.name: each for each in found}


def events(content):
  return [{key: value for key, value in each.items() if key != 'time'} for each in content.values.events(0.0)]


@pytest.mark.parametrize('as_tensors', [False, True])
def test_folders_are_runs_or_parts_of_runs(tmp_path, as_tensors):
  logs = tmp_path / 'logs'
  sources.write_tensorboard(logs / 'a/train', [(1, {'epoch_loss': 0.5, 'time': 2.0})], as_tensors=as_tensors)
  sources.write_tensorboard(logs / 'a/validation', [(1, {'epoch_loss': 0.75})], as_tensors=as_tensors)
  sources.write_tensorboard(logs / 'group/b', [(2, {'loss/train': 1.0, 'eval/acc': math.nan})], as_tensors=as_tensors)
  found = read(logs)
  assert set(found) == {'a', 'group/b'}
  assert events(found['a']) == [
    {'event': 'train', 'step': 1, 'epoch_loss': 0.5, 'time_': 2.0},
    {'event': 'eval', 'step': 1, 'epoch_loss': 0.75},
  ]
  train, evaluation = events(found['group/b'])
  assert train == {'event': 'train', 'step': 2, 'loss/train': 1.0} and math.isnan(evaluation['acc'])
  assert found['a'].values.ends() == (sources.TIME + 1, sources.TIME + 1)
  assert set(read(logs / 'group/b')) == {'b'} and set(read(logs / 'a/train')) == {'a'}


def test_what_a_restart_has_repeated_is_superseded(tmp_path):
  sources.write_tensorboard(tmp_path / 'r', [(step, {'loss': float(step)}) for step in (0, 10, 20, 30)], '.1')
  sources.write_tensorboard(tmp_path / 'r', [(step, {'loss': -float(step)}) for step in (15, 20)], '.2')
  found = [(each['step'], each['loss']) for each in events(read(tmp_path)['r'])]
  assert found == [(0, 0), (10, 10), (15, -15), (20, -20)]
  assert read(tmp_path)['r'].values.num_superseded == 2


def test_files_of_one_time_are_joined(tmp_path):
  from tensorboard.compat.proto import event_pb2
  from tensorboard.compat.proto import summary_pb2
  from tensorboard.summary.writer import event_file_writer

  writers = [event_file_writer.EventFileWriter(str(tmp_path / 'r'), filename_suffix=suffix) for suffix in ('.1', '.2')]
  for step in range(8):
    value = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag='loss', simple_value=step)])
    writers[step % 2].add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=value))
  for writer in writers:
    writer.close()
  values = read(tmp_path)['r'].values
  assert len(values) == 8 and values.num_superseded == 0
  assert [(each['step'], each['loss']) for each in values.events(0.0)] == [(step, step) for step in range(8)]


def test_values_without_steps_are_counted(tmp_path):
  sources.write_tensorboard(tmp_path / 'r', [(0, {'loss': float(value)}) for value in range(4)])
  assert [(each['step'], each['loss']) for each in events(read(tmp_path)['r'])] == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.tensorflow  # PyTorch imports it.
def test_the_hyperparameters_of_pytorch_are_the_configuration(tmp_path):
  from torch.utils import tensorboard

  writer = tensorboard.SummaryWriter(str(tmp_path / 'r'))
  writer.add_scalar('loss', 0.5, 3)
  writer.add_histogram('weights', np.ones(2), 3)
  writer.add_hparams({'lr': 0.1, 'layers': 3, 'name': 'mlp'}, {'hparam/accuracy': 0.9})
  writer.close()
  (content,) = read(tmp_path).values()
  assert content.config == {'lr': 0.1, 'layers': 3, 'name': 'mlp'}
  assert (content.status, content.is_end_known) == ('finished', True)
  assert events(content)[-1] == {'event': 'train', 'step': 3, 'loss': 0.5}


@pytest.mark.parametrize('place, count', [(-1, 2), (-5, 2), (-60, 1)])
def test_a_damaged_file_has_the_values_before_the_damage(tmp_path, place, count):
  sources.write_tensorboard(tmp_path / 'r', [(step, {'loss': 1.0}) for step in (1, 2, 3)])
  (path,) = (tmp_path / 'r').iterdir()
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  path.write_bytes(content)
  found = read(tmp_path)['r']
  assert len(found.values) == count and len(found.damage) == 1
  assert found.damage[0].startswith(f'{path}: damaged at byte ') and '\n' not in found.damage[0]


def test_a_file_that_was_cut_short_is_not_damaged(tmp_path):
  sources.write_tensorboard(tmp_path / 'r', [(step, {'loss': 1.0}) for step in (1, 2, 3)])
  (path,) = (tmp_path / 'r').iterdir()
  path.write_bytes(path.read_bytes()[:-7])
  found = read(tmp_path)['r']
  assert len(found.values) == 2 and not found.damage and not found.is_end_known


def test_a_file_of_another_kind_is_named(tmp_path):
  (tmp_path / 'r').mkdir()
  (tmp_path / 'r/events.out.tfevents.1').write_bytes(b'text that is none of it')
  with pytest.raises(tensorboard_files.UnreadableRunError, match=r'events.out.tfevents.1: damaged at byte 0'):
    read(tmp_path)
