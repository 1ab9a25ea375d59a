"""Folders that the code wrote before its modules were merged are read, resumed and continued by today's.

tests/fixtures/make.py has made them. Each test copies one to another place, and uses it by the commands of users. The
names in what today's code then writes are those of the stored folders: JSON keys, statuses, variables in checkpoints.

Values of float32 are equal bit for bit only on a CPU with the same vector instructions, because they decide the order
in which sums are made: elsewhere they are compared with a tolerance (`tolerance`). All else is equal everywhere.
"""

from collections.abc import Iterator, Mapping
import json
import pathlib
import re
import shutil
import sys
from typing import Any

import gin
import numpy as np
import pytest
from safetensors import numpy as safetensors
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
import tf_keras

import official_ext as ext
from official_ext.base import config_text
from official_ext.cli import flags as ext_flags
from official_ext.cli import main
from official_ext.cli import train
from official_ext.operations.queue import queue_folder
import registry_imports  # noqa: F401
from tests import tiers
from tests.fixtures import make
from tests.operations.queue import queues
from tests.soak import comparison

ROOT = pathlib.Path(__file__).resolve().parents[1]
_GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
# Numbers that a run measures, names of its folder, and the share of `train_steps`, which may have grown.
_OPEN = ('code', 'versions', 'environment', 'files', 'sha256')
# A field of the configuration, an entry of manifests, an entry of run.json, an entry of manifests.
_ADDED = ('ema_zero_start', 'epochs', 'balance', 'slot_owners')
_MEASURED = comparison.TIMES | {'stall_seconds', 'checkpoint', 'error', 'percent'}


@pytest.fixture(autouse=True)
def clean_process():
  yield
  gin.clear_config()
  tf_keras.mixed_precision.set_global_policy('float32')


@pytest.fixture
def copied(tmp_path):
  """copied(NAME) -> a copy of a stored folder, in which paths are those of the copy and of this repository."""

  def copy(name: str) -> pathlib.Path:
    folder = tmp_path / name.rpartition('/')[2]
    shutil.copytree(make.FOLDER / name, folder)
    for path in folder.rglob('*'):
      if path.is_dir() and path.name == queue_folder.NAME:
        path.chmod(0o700)  # Git keeps no such modes, and a dispatcher refuses a folder that others can write to.
      if path.suffix == '.json' and path.parts[-4:-2] == (queue_folder.NAME, 'jobs') or path.name == 'settings.json':
        text = path.read_text()
        for stored, here in ((make.STORED, folder), (make.PYTHON, sys.executable), (make.CHECKOUT, ROOT)):
          text = text.replace(stored, str(here))
        path.write_text(text)
    return folder

  return copy


def drive(*arguments: object) -> int:
  """Runs `python train.py ARGUMENTS` after its imports; returns the exit status."""
  ext_flags.define_flags()
  remaining = ext_flags.parse_flags(['train.py', f'--registry={make.EXPERIMENTS}', *map(str, arguments)])
  return train.run_main(train.main, remaining)


def keys(value: Any) -> Any:
  """The keys of JSON: of a list those of all its elements; other values are left out."""
  if isinstance(value, dict):
    return {name: keys(value[name]) for name in sorted(value)}
  if isinstance(value, list):
    return sorted({json.dumps(found) for each in value if (found := keys(each))})
  return None


def events(folder: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in (folder / 'events.jsonl').read_text().splitlines()]


def flat(value: Any, name: str = '') -> Iterator[tuple[str, Any]]:
  """(path, leaf) of JSON, but for what is measured."""
  if isinstance(value, dict | list):
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
      if key not in _MEASURED:
        yield from flat(each, f'{name}.{key}')
  else:
    yield name, value


def names(folder: pathlib.Path) -> set[str]:
  """The files of a run, TensorBoard's by their folder."""
  found = (path for path in folder.rglob('*') if path.is_file())
  return {
    str(path.relative_to(folder) if 'tfevents' not in path.name else path.parent.relative_to(folder) / 'tfevents')
    for path in found
    if path.name != 'events.system.jsonl'  # Of runs of more than 15 seconds.
  }


def tolerance(name: str) -> float:
  """The difference of values to the stored ones, as a share of the largest of their array; 0 on a CPU of that kind.

  Elsewhere sums are made in another order. A sum of n terms is then known to n roundings of 2^-24. The longest chain of
  sums in a step of the perceptron has 64 pixels, 4 units, 10 classes, 128 examples and 310 gradients (their norm); six
  steps follow the restore. In float16 the results of some ten operations are rounded to 2^-11 in each step.
  """
  if make.processor() == json.loads((make.FOLDER / 'runs/processor.json').read_text()):
    return 0.0
  return 6 * 10 * 2.0**-11 if name == 'float16' else 6 * (64 + 4 + 10 + 128 + 310) * 2.0**-24


def content(prefix: pathlib.Path) -> tuple[dict[str, np.ndarray], set[str]]:
  """The variables of a checkpoint by name, and the paths of all tracked objects in it."""
  values = dict(comparison.tensors(prefix))
  del values[_GRAPH]  # An array of bytes has lost the zeros at its end.
  graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
    tf.train.load_checkpoint(str(prefix)).get_tensor(_GRAPH)
  )
  tracked, seen = set(), set()

  def walk(number: int, path: str) -> None:
    tracked.update(f'{path}.{attribute.name}' for attribute in graph.nodes[number].attributes)
    for child in graph.nodes[number].children:
      tracked.add(f'{path}/{child.local_name}')
      if child.node_id not in seen:
        seen.add(child.node_id)
        walk(child.node_id, f'{path}/{child.local_name}')

  walk(0, '')
  return values, tracked


def assert_same_checkpoint(prefix: pathlib.Path, expected: pathlib.Path, share: float) -> None:
  (found, tracked), (stored, expected_tracked) = content(prefix), content(expected)
  assert_same_values(found, stored, share)
  assert tracked == expected_tracked


def assert_same_values(found: Mapping[str, Any], expected: Mapping[str, Any], share: float) -> None:
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    one, other = np.asarray(found[name]), np.asarray(value)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), name
    if other.dtype.kind == 'f' and share:
      largest = np.max(np.abs(other), initial=0.0)
      # A share of 64 or more examples: some may have two classes that are as probable.
      atol = 2 / 64 if 'accuracy' in name else share * largest
      np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)
    else:
      np.testing.assert_array_equal(one, other, err_msg=name)


def assert_same_run(folder: pathlib.Path, expected: pathlib.Path, share: float) -> None:
  """A resumed run has the files, the names and the values of one that was not stopped."""
  # A new field keeps the former params.yaml; the run that made `expected` had no run.log.
  assert names(folder) - {'params.1.yaml', 'run.log'} == names(expected)
  for path in sorted(expected.rglob('*.json')):
    here, there = (json.loads((root / path.relative_to(expected)).read_text()) for root in (folder, expected))
    assert keys(without_open_keys(here)) == keys(without_open_keys(there)), path
  for path in sorted(expected.rglob('*.index')):
    prefix = path.relative_to(expected).with_suffix('')
    assert_same_checkpoint(folder / prefix, expected / prefix, share)
  found, stored = comparison.history(folder), comparison.history(expected)
  assert_same_values(dict(flat(found)), dict(flat(stored)), share)
  here, there = ({each['event']: keys(each) for each in events(root)} for root in (folder, expected))
  if here.keys() != there.keys():  # It was stopped, and resumed.
    assert here.pop('restored') == keys(dict.fromkeys(['time', 'event', 'step', 'checkpoint']))
    here.pop('preempted', None)
  assert here == there
  here, there = (config_text.load((root / 'params.yaml').read_text(), 'params.yaml') for root in (folder, expected))
  assert keys(without_added(here)) == keys(there)


def without_open_keys(record: Any) -> Any:
  """A record without the parts whose keys are names of files, packages and variables of the environment, or are new."""
  if not isinstance(record, dict):
    return record
  known = {name: value for name, value in record.items() if name not in (*_OPEN, *_ADDED)}
  return {name: without_added(value) for name, value in known.items()}


def without_added(value: Any) -> Any:
  """JSON without the entries that the stored folders' code did not write."""
  if isinstance(value, dict):
    return {name: without_added(each) for name, each in value.items() if name not in _ADDED}
  return [without_added(each) for each in value] if isinstance(value, list) else value


@tiers.parametrize('name', list(make.RUNS), fast=1)
def test_a_run_that_was_stopped_resumes_to_its_end(name, copied, capfd):
  folder = copied(f'runs/{name}')
  assert drive(*make.RUNS[name], f'--model_dir={folder}') == 0, capfd.readouterr()
  assert_same_run(folder, make.FOLDER / f'runs/{name}_end', tolerance(name))


@pytest.mark.slow
def test_a_run_that_is_stopped_now_is_as_the_stored_one(tmp_path, capfd, monkeypatch):
  monkeypatch.setenv('STORED_RUN_STOPS_AT', str(make.STOP_AT))
  flags = (*make.RUNS['plain'], '--set=trainer.optimizer_config.ema_zero_start=true')  # The start of that time.
  assert drive(*flags, f'--model_dir={tmp_path}/run') == 75, capfd.readouterr()
  record, stored = (
    json.loads((root / 'run.json').read_text()) for root in (tmp_path / 'run', make.FOLDER / 'runs/plain')
  )
  assert [record[name] for name in ('status', 'stage', 'error')] == [
    stored[name] for name in ('status', 'stage', 'error')
  ]
  assert_same_run(tmp_path / 'run', make.FOLDER / 'runs/plain', 2 * tolerance('plain'))  # Ten steps, and not six.


def weights(prefix: pathlib.Path) -> dict[tuple[int, ...], np.ndarray]:
  """The weights of the model in a checkpoint, by their shapes, which differ."""
  return {
    value.shape: value
    for name, value in comparison.tensors(prefix).items()
    if name.startswith('model/') and '.OPTIMIZER_SLOT' not in name
  }


@pytest.mark.parametrize(
  ('options', 'prefix'),
  [
    ({'which': 'best'}, 'best/best_ckpt-16'),
    ({'which': 'latest', 'ema': False}, 'ckpt-16'),
    ({'which': 12, 'ema': False}, 'ckpt-12'),
    ({'which': 'latest', 'ema': True}, 'ema_checkpoints/average_weights-16'),
  ],
)
def test_the_model_of_a_run_is_loaded(options, prefix, copied):
  folder = copied('runs/plain_end')
  stored = weights(folder / prefix)
  model = ext.load(str(folder), **options)
  assert len(model.weights) == len(stored) == 4
  for weight in model.weights:
    np.testing.assert_array_equal(weight.numpy(), stored[tuple(weight.shape)])


@pytest.mark.slow
@pytest.mark.parametrize('checkpoint', ['ckpt-8', 'best/best_ckpt-16', 'ema_checkpoints/average_weights-12'])
def test_a_checkpoint_is_evaluated(checkpoint, copied, capfd):
  folder = copied('runs/plain_end')
  flags = ('--experiment=stored', '--mode=eval', f'--model_dir={folder}')
  assert drive(*flags, f'--checkpoint={folder}/{checkpoint}') == 0, capfd.readouterr()
  step = int(checkpoint.rpartition('-')[2])
  lines = [json.loads(line) for line in (folder / 'events.eval.jsonl').read_text().splitlines()]
  (found,) = [line for line in lines if line['event'] == 'eval']
  (stored,) = [each for each in events(folder) if each['event'] == 'eval' and each['step'] == step]
  # Averages are what the training evaluates.
  assert found['validation_loss'] == pytest.approx(stored['validation_loss'], rel=1e-6)


@pytest.mark.slow
def test_a_run_starts_from_a_checkpoint_of_another(copied, tmp_path, capfd):
  folder = copied('runs/plain')
  flags = (*make.RUNS['plain'], f'--model_dir={tmp_path}/next', f'--checkpoint={folder}/ckpt-10')
  assert drive(*flags) == 0, capfd.readouterr()
  assert_same_checkpoint(tmp_path / 'next/ckpt-16', make.FOLDER / 'runs/plain_end/ckpt-16', tolerance('plain'))
  record, stored = (
    json.loads(path.read_text()) for path in (tmp_path / 'next/lines.json', make.FOLDER / 'runs/branched/lines.json')
  )
  assert keys(record) == keys(stored)


def call(capsys, *words: object) -> str:
  """The output of `official-ext WORDS`."""
  assert main.main([str(word) for word in words]) == 0, capsys.readouterr()
  return capsys.readouterr().out


@pytest.mark.parametrize('name', make.PRINTED)
def test_commands_print_the_same_of_the_runs(name, copied, capsys):
  folder = copied('runs')
  subcommand, *words = make.PRINTED[name]
  printed = call(capsys, 'runs', subcommand, folder, *words).replace(str(folder), make.STORED)
  found, stored = json.loads(printed), json.loads((make.FOLDER / f'printed/{name}.json').read_text())
  if name == 'checkpoints':  # A time of theirs is that of the file, and so of the checkout.
    for checkpoint in (*found, *stored):
      assert checkpoint.pop('time') > 0
  if name == 'list':  # An added field.
    assert [run.pop('best')['metric'] for run in found if run['evaluation']] == ['validation_loss'] * len(found)
  if name == 'show':  # The events of a run without a log are in words now; a log that the run has kept is as before.
    events = [json.loads(line) for line in stored.pop('log')]
    lines = found.pop('log')
    assert all(re.match(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  [a-z]', line) for line in lines)
    assert events[-1]['event'] == 'finished' and 'finished' in lines[-1] and f'step {events[-1]["step"]}' in lines[-1]
  assert found == stored


def test_a_stopped_run_resumes_by_its_record(copied, capsys):
  """`runs clone` reads the command in the record of a run, whose folder is another now."""
  folder = copied('runs')
  printed = call(capsys, 'runs', 'clone', folder, 'plain', '--name=again')
  assert '--experiment=stored' in printed and f'--model_dir={folder}/again' in printed


def test_the_queue_is_listed_and_dispatched(copied, capsys):
  folder = copied('queue')
  listed = call(capsys, 'queue', 'list', folder / 'runs', '--json', '--all').replace(str(folder), make.STORED)
  assert json.loads(listed) == json.loads((folder / 'list.json').read_text())
  main.main(['queue', 'resume', str(folder / 'runs'), '5'])
  # A job that had failed before does not count.
  assert main.main(['queue', 'run', str(folder / 'runs'), '--until_empty']) == 0
  capsys.readouterr()
  jobs = json.loads(call(capsys, 'queue', 'list', folder / 'runs', '--json', '--all'))['jobs']
  assert {job['job']: (job['status'], job['attempt']) for job in jobs} == {
    1: ('finished', 1),
    2: ('failed', 1),
    3: ('cancelled', 0),
    **dict.fromkeys((4, 5, 6), ('finished', 1)),
  }
  jobs_dir = folder / 'runs' / queue_folder.NAME / 'jobs'
  started = {number: json.loads((jobs_dir / f'{number}/attempt-1.json').read_text())['time'] for number in (4, 5, 6)}
  assert sorted(started, key=started.get) == [6, 4, 5]
  for path in (jobs_dir / '1').iterdir():
    assert keys(json.loads((jobs_dir / '6' / path.name).read_text())) == keys(json.loads(path.read_text()))
  assert (folder / 'runs/first/run.log').read_text() == 'six\n'


def test_the_sweep_continues_to_the_same_points(copied, capsys, monkeypatch):
  folder = copied('sweep')
  monkeypatch.chdir(folder)
  stopped = json.loads(call(capsys, 'sweep', 'show', 'runs', 'search', '--json'))
  assert (stopped['status'], stopped['counts']) == ('stopped', {'finished': 1, 'stopped': 1})
  assert main.main(['sweep', 'runs/search']) == 0, capsys.readouterr()
  capsys.readouterr()
  queues.until(lambda: queue_folder.Queue('runs').dispatcher() is None)
  end, expected = (
    json.loads(call(capsys, 'sweep', 'show', 'runs', 'search', '--json')),
    json.loads((folder / 'end.json').read_text()),
  )
  assert end == expected
  first, last = (sorted(folder.glob(f'runs/search/{number}-*/sweep.json')) for number in ('001', '005'))
  assert keys(json.loads(first[0].read_text())) == keys(json.loads(last[0].read_text()))


def state_of(folder: pathlib.Path) -> dict[str, tuple[bytes, int]]:
  """The content of each file of a folder, and when it was written, in nanoseconds."""
  files = (path for path in folder.rglob('*') if path.is_file())
  return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_prepared_rows_and_images_are_read(copied):
  folder = copied('prepared')
  rows = ext.PreparedRows(str(folder / 'rows'))
  lines = [json.loads(line) for line in (folder / 'rows.jsonl').read_text().splitlines()]
  assert rows.fetch(range(len(rows))) == lines
  images = ext.PreparedRows(str(folder / 'prepared_images'))
  assert list(images.labels) == ['cat', 'dog']
  files = sorted((folder / 'images').rglob('*.png'))
  assert [row['image'] for row in images.fetch(range(len(images)))] == [path.read_bytes() for path in files]


def test_rows_are_not_prepared_again(copied, capfd, monkeypatch):
  folder = copied('prepared')
  monkeypatch.chdir(folder)
  shards = lambda: {name: state for name, state in state_of(folder / 'rows').items() if 'array_record' in name}
  before = shards()
  assert main.main(['prepare', 'rows.jsonl', 'rows', '--shard_size=8KB', '--workers=1']) == 0
  assert '2 shards, 2 of which existed' in capfd.readouterr().out
  assert shards() == before
  here, there = (json.loads((root / 'rows/prepared.json').read_text()) for root in (folder, make.FOLDER / 'prepared'))
  assert keys(without_open_keys(here)) == keys(without_open_keys(there))


@pytest.mark.slow
def test_prepared_rows_are_trained_on_and_kept(copied, capfd):
  folder = copied('prepared')
  before = state_of(folder / 'rows')
  inputs = [f'--set=task.{data}.input_path={folder}/rows' for data in ('train_data', 'validation_data')]
  flags = ('--experiment=stored_rows', '--mode=train_and_eval', f'--model_dir={folder}/run', '--set=train_steps=2')
  assert drive(*flags, *inputs) == 0, capfd.readouterr()
  assert state_of(folder / 'rows') == before


def test_the_adapters_have_the_stored_logits(copied):
  folder = copied('texts')
  stored = np.load(folder / 'logits.npz')
  model = ext.pretrained.load(str(folder / 'base'))
  # The longest chain of sums has 24 products, 12 positions and 16 features, in a handful of layers.
  share = 10 * 24 * 2.0**-24
  assert_same_values({'logits': model(make.IDS).numpy()}, {'logits': stored['base']}, share)
  ext.peft_folders.load(model, str(folder / 'adapted_end/adapter'))
  assert_same_values({'logits': model(make.IDS).numpy()}, {'logits': stored['adapted']}, share)
  assert np.max(np.abs(stored['adapted'] - stored['base'])) > 1e3 * share


@pytest.mark.slow
def test_a_run_with_adapters_resumes_on_its_stored_tokens(copied, capfd):
  folder = copied('texts')
  before = state_of(folder / 'cache')
  assert drive(*make.sft_flags(folder), '--set=train_steps=4', f'--model_dir={folder}/adapted') == 0, capfd.readouterr()
  assert state_of(folder / 'cache') == before
  (folder / 'adapted/params.1.yaml').unlink()  # With the earlier number of steps.
  # Two steps, whose longest sums have 24 products, 4 texts of 48 tokens and the classes of 304 tokens.
  share = 2 * (24 + 4 * 48 + 304) * 2.0**-24 if tolerance('plain') else 0.0
  assert_same_run(folder / 'adapted', folder / 'adapted_end', share)
  stored, found = (
    safetensors.load_file(folder / f'{name}/adapter/adapter_model.safetensors') for name in ('adapted_end', 'adapted')
  )
  assert_same_values(found, stored, share)


@pytest.mark.slow
def test_prepared_texts_are_trained_on_and_kept(copied, capfd):
  folder = copied('texts')
  (path,) = folder.glob('rows/train_data.yaml')
  path.write_text(path.read_text().replace(make.STORED, str(folder)))
  before = state_of(folder / 'rows')
  flags = ['--experiment=sft', '--mode=train', f'--config_file={path}', f'--set=model_path={folder}/base']
  lengths = [f'--set={name}=1' for name in ('train_steps', 'steps_per_loop', 'checkpoint_interval', 'summary_interval')]
  assert drive(*flags, *lengths, '--set=xla=false', '--set=warmup_steps=0', f'--model_dir={folder}/run') == 0, (
    capfd.readouterr()
  )
  assert state_of(folder / 'rows') == before
