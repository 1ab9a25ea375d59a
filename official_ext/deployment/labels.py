"""The names of a model's classes, which become labels.txt of its export."""

from official_ext.data import class_names
from official_ext.training.trained import trained_model

FILE = 'labels.txt'


def of(trained: trained_model.TrainedModel) -> list[str]:
  """The names of the classes in the order of their numbers, of the task or beside its data; [] if there are none."""
  own = [str(name) for name in getattr(trained.task, 'class_names', ())]
  if own:
    return own
  config = trained.params.task
  for split in ('validation_data', 'train_data'):
    data = getattr(config, split, None)
    names = class_names.find(data)
    if len(names):
      number = getattr(getattr(config, 'model', None), 'num_classes', None)
      return [names.of(index) for index in range(max(len(names), number or 0))]
  return []
