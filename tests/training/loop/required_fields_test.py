"""Required fields that Model Garden leaves open are named."""

import types

from official.common import registry_imports as model_garden  # noqa: F401  Its experiments.
from official.core import task_factory
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.config import parser
from official_ext.training.loop import building
from official_ext.training.loop import required_fields
import registry_imports  # noqa: F401
from tests.training.loop import small_run

SMALL_BERT = (
  'task.model.encoder.bert.num_layers=1',
  'task.model.encoder.bert.hidden_size=24',
  'task.model.encoder.bert.vocab_size=50',
)


@pytest.mark.parametrize(
  'experiment, settings, told',
  [
    (
      'bert/tagging',
      SMALL_BERT,
      r'task.class_names: is not set, and TaggingTask needs it \(TypeError: object of type '
      r"'NoneType' has no len\(\)\)",
    ),
    (
      'image_classification',
      (),
      r'task.model.num_classes, task.model.input_size: are not set, and ImageClassificationTask needs them \(Value',
    ),
    ('video_classification', (), r'task.train_data.num_classes.*: (is|are) not set, and VideoClassificationTask needs'),
  ],
)
def test_a_field_that_model_garden_leaves_open_is_named(experiment, settings, told):
  params = parser.parse_configuration(
    types.SimpleNamespace(experiment=experiment, set=list(settings)), print_return=False
  )
  task = task_factory.get_task(params.task)
  with pytest.raises(errors.UserError, match=told):
    building.build_trainer(tf.distribute.get_strategy(), task, params, None, train=True, evaluate=False)


def test_errors_of_the_users_own_model_stay_as_they_are():

  class Broken(small_run.SmallTask):
    def build_model(self):
      return len(self.config.init_checkpoint_may_miss[0])

  params = small_run.make_params()
  task = small_run.make_task(params, Broken)
  with pytest.raises(Exception) as info:
    building.build_trainer(tf.distribute.get_strategy(), task, params, None, train=True, evaluate=False)
  assert not isinstance(info.value, errors.UserError)


def test_an_error_that_no_open_field_explains_stays_as_it_is():
  with pytest.raises(ValueError, match='^something else$'):
    with required_fields.named(small_run.make_params().task, 'Task'):
      raise ValueError('something else')
