"""A task on texts: the tokenizer that a run has made stays with it, even if texts and cache change."""

import dataclasses
import os
import shutil

from official.core import task_factory
import pytest

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.language.text import text_task
from official_ext.language.text import tokenizer
from official_ext.language.text import tokenizer_training
from official_ext.training.config import definitions
from official_ext.training.diagnosis import finite_checks
from official_ext.training.trained import trained_model
from tests.training.loop import small_run


@dataclasses.dataclass
class SmallTextConfig(definitions.TaskConfig):
  tokenizer_path: str = ''


class SmallTextTask(text_task.TextTask, small_run.SmallTask):
  """The numbers of small_run, by a model that has room for `vocab_size` tokens."""

  vocab_size = 270
  texts = ('hello there, hello there',)
  seen: list[str] = []  # The tokenizers of tasks.

  def make_tokenizer(self):
    return tokenizer_training.train(list(self.texts), 265)

  def build_model(self):
    self.check_vocabulary(self.vocab_size)
    self.seen.append(self.tokenizer.digest)
    return super().build_model()


class OtherTexts(SmallTextTask):
  """As with another Python, or on another machine."""

  texts = ('quite another text, quite another text',)


def make_params(**changes):
  params = small_run.make_params(train_steps=4)
  data = {name: getattr(params.task, name) for name in ('train_data', 'validation_data')}
  params.task = SmallTextConfig(**data, **changes)
  return params


def run(folder, task_cls=SmallTextTask, mode='train', steps=4, **options):
  """The digest of the tokenizer that a run has."""
  del SmallTextTask.seen[:]
  params = options.pop('params', None) or make_params()
  params.trainer.train_steps = steps
  small_run.run(folder, mode, task_cls, params=params, **options)
  return SmallTextTask.seen[0]


def digest_of(folder):
  return tokenizer.Tokenizer.load(str(folder)).digest


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """(the folder of a run, the digest of its tokenizer)."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  return folder, run(folder)


def test_the_folder_of_a_run_has_the_tokenizer_before_the_first_step(tmp_path):
  class Stops(SmallTextTask):
    def initialize(self, model):
      assert digest_of(tmp_path / 'run/tokenizer') == self.tokenizer.digest
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / 'run', Stops)
  # Nothing was trained: a new start makes its own, and keeps that.
  other = run(tmp_path / 'run', OtherTexts)
  assert other == digest_of(tmp_path / 'run/tokenizer') != SmallTextTask(make_params().task, ((), ())).tokenizer.digest


@pytest.mark.slow
def test_a_run_that_starts_from_another_run_has_its_tokenizer(trained, tmp_path, monkeypatch):
  folder, expected = trained
  assert digest_of(folder / 'tokenizer') == expected
  assert run(tmp_path / 'new', OtherTexts) != expected
  copy = tmp_path / 'copy'
  shutil.copytree(folder, copy)
  before = os.stat(copy / 'tokenizer').st_ino
  assert run(copy, OtherTexts, steps=6) == expected
  assert run(copy, OtherTexts, 'eval') == expected
  assert os.stat(copy / 'tokenizer').st_ino == before  # It was not written again.
  # Another run, from this one's checkpoint or weights, keeps it in its turn.
  assert run(tmp_path / 'line', OtherTexts, steps=6, checkpoint=str(folder / 'ckpt-4')) == expected
  assert run(tmp_path / 'warm', OtherTexts, params=make_params(init_checkpoint=str(folder))) == expected
  for name in ('line', 'warm'):
    assert digest_of(tmp_path / name / 'tokenizer') == expected
  # A checkpoint of `best`, which is one folder below.
  task = OtherTexts(make_params().task, ((), ()))
  (folder / 'best').mkdir()
  task.weights_folder = str(folder / 'best')
  assert task.tokenizer.digest == expected
  # A model that is taken up without a run.
  make = lambda config, **kwargs: OtherTexts(config, small_run.harness.make_data(64))
  monkeypatch.setattr(task_factory, 'get_task', make)
  del SmallTextTask.seen[:]
  trained_model.load_model(make_params(), str(folder), 'latest')
  finite_checks.debug_step(make_params(), str(folder))
  assert SmallTextTask.seen == [expected] * 2


@pytest.mark.slow
def test_a_tokenizer_that_is_named_is_not_kept_and_wins(trained, tmp_path):
  tokenizer_training.train(['named, named, named'], 262).save(str(tmp_path / 'named'))
  params = make_params(tokenizer_path=str(tmp_path / 'named'))
  assert run(tmp_path / 'run', params=params) == digest_of(tmp_path / 'named')
  assert not (tmp_path / 'run/tokenizer').exists()
  shutil.copytree(trained[0], tmp_path / 'copy')
  assert run(tmp_path / 'copy', params=make_params(tokenizer_path=str(tmp_path / 'named')), steps=6) != trained[1]


def test_an_evaluation_that_waits_for_a_training_writes_none(tmp_path):
  task = SmallTextTask(make_params().task, ((), ()))
  task.weights_folder = str(tmp_path)  # Nothing is in it yet.
  assert task.tokenizer.digest and os.listdir(tmp_path) == []


def test_a_model_without_room_for_the_tokens_of_its_run_is_refused(trained, tmp_path):
  class Smaller(SmallTextTask):
    vocab_size = 260

  shutil.copytree(trained[0], tmp_path / 'copy')
  with pytest.raises(errors.UserError) as refused:
    run(tmp_path / 'copy', Smaller, steps=6)
  assert str(refused.value).startswith(
    f'task.model.vocab_size: 260 is less than the 265 tokens of {tmp_path}/copy/tokenizer, which the weights were '
    'trained with: set it to the earlier value, or start a new run in another --model_dir'
  )
  with pytest.raises(errors.UserError, match='task.model.vocab_size: the tokenizer has 265 tokens, and the model has '):
    run(tmp_path / 'new', Smaller)
  assert not (tmp_path / 'new/tokenizer').exists()


def test_it_is_kept_on_remote_storage(trained):
  task = SmallTextTask(make_params().task, ((), ()))
  task.keep_files('ram://text_task_test/run')
  paths.write_atomically('ram://text_task_test/run/params.yaml', b'')
  again = OtherTexts(make_params().task, ((), ()))
  again.weights_folder = 'ram://text_task_test/run'
  assert again.tokenizer.digest == trained[1] == task.tokenizer.digest


def test_a_tokenizer_that_is_damaged_is_reported_by_its_file(trained, tmp_path):
  shutil.copytree(trained[0], tmp_path / 'copy')
  (tmp_path / 'copy/tokenizer/tokenizer.json').write_text('{')
  with pytest.raises(errors.UserError, match='copy/tokenizer/tokenizer.json: is damaged'):
    run(tmp_path / 'copy', steps=6)
