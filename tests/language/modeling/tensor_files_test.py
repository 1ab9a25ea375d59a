"""Files of weights: who may read them, and full disks."""

import errno
import os
import pathlib
import stat

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import whole_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import tensor_files
from tests import disks

ARRAY = np.zeros([1000, 1000], np.float32)


@pytest.fixture
def umask():
  before = os.umask(0o027)
  yield
  os.umask(before)


def test_weights_have_the_permissions_of_any_new_file(umask, tmp_path):
  config = decoder_config.DecoderConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=1)
  model = decoder.LanguageModel(config)
  pretrained.save(model, str(tmp_path / 'whole'))
  pretrained.save(model, str(tmp_path / 'shards'), max_shard_bytes=4000)
  lora.attach(model, lora.LoraConfig(r=2))
  peft_folders.save(model, str(tmp_path / 'adapter'))
  files = list(tmp_path.glob('*/*.safetensors'))
  assert len(files) > 3 and {path.parent.name for path in files} == {'whole', 'shards', 'adapter'}
  assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(tmp_path):
  with disks.small(tmp_path / 'disk') as disk:
    path = str(disk.folder / 'a.safetensors')
    with pytest.raises(OSError) as caught:
      tensor_files.write_file(path, {'array': ARRAY})
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == path
    assert os.listdir(disk.folder) == []

    folder = disk.folder / 'result'
    whole_folders.write(str(folder), lambda partial: pathlib.Path(partial, 'before').write_text('before'))
    with pytest.raises(errors.StorageError, match='result: cannot be written: No space left on device$'):
      whole_folders.write(
        str(folder), lambda partial: tensor_files.write(partial, {'array': lambda: ARRAY}, 'float32', 10**9)
      )
    assert os.listdir(disk.folder) == ['result'] and os.listdir(folder) == ['before']


def test_what_is_no_failure_of_storage_is_not_reported_as_one(tmp_path):
  with pytest.raises(Exception, match='complex128') as caught:
    tensor_files.write_file(str(tmp_path / 'a.safetensors'), {'array': np.zeros(3, np.complex128)})
  assert not isinstance(caught.value, OSError) and os.listdir(tmp_path) == []


def test_new_shards_beside_old_ones_are_no_model(tmp_path):
  """The rename of the second shard fails, as a kill would stop it: the old index would name both."""
  write = lambda value: tensor_files.write(
    str(tmp_path), {name: lambda: np.full([10], value, np.float32) for name in ('a', 'b')}, 'float32', 40
  )
  write(1)
  second = tmp_path / 'model-00002-of-00002.safetensors'
  assert sorted(path.name for path in tmp_path.iterdir())[1] == second.name
  aside = tmp_path / 'aside'
  second.rename(aside)
  (second / 'obstacle').mkdir(parents=True)
  with pytest.raises((OSError, tf.errors.OpError)):
    write(2)
  (second / 'obstacle').rmdir()
  second.rmdir()
  aside.rename(second)
  with pytest.raises(
    errors.UserError, match=r'model\.safetensors: no such file, and no model\.safetensors\.index\.json'
  ):
    tensor_files.TensorFiles(str(tmp_path))
  write(3)
  found = dict(tensor_files.TensorFiles(str(tmp_path)).tensors(lambda name: True))
  assert {name: value.tolist() for name, value in found.items()} == {'a': [3] * 10, 'b': [3] * 10}


def test_a_tensor_is_that_of_the_file_that_the_index_names(tmp_path):
  values = {name: (lambda: np.full([4], 1, np.float32)) for name in ('a', 'b', 'c')}
  tensor_files.write(str(tmp_path), values, 'float32', 16)
  other = np.full([4], 2, np.float32)
  tensor_files.write_file(str(tmp_path / 'model-00003-of-00003.safetensors'), {'a': other, 'c': other, 'd': other})
  tensor_files.write_file(str(tmp_path / 'model.safetensors'), {'a': other, 'b': other, 'c': other})
  found = dict(tensor_files.TensorFiles(str(tmp_path)).tensors(lambda name: True))
  assert {name: value[0] for name, value in found.items()} == {'a': 1, 'b': 1, 'c': 2}
