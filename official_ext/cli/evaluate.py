"""official-ext evaluate RUN: figures, pictures and mistakes of a run's model on data."""

import argparse
from collections.abc import Sequence
import dataclasses
import importlib
import os
import re
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.language.text import bert_targets
from official_ext.training.devices import preemption
from official_ext.vision.conversion import targets

if TYPE_CHECKING:
  from official_ext.training.config import definitions
  from official_ext.training.evaluation import evaluated_data as evaluated_data_lib

_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class _Evaluator:
  """The evaluator of a task: its module, and the targets of `prepare` that it reads."""

  module: str
  kinds: Sequence[str]


# By Model Garden's configurations of tasks.
_EVALUATORS = {
  'official.vision.configs.image_classification.ImageClassificationTask': _Evaluator(
    'official_ext.vision.evaluation.image_classes', (targets.CLASSIFICATION,)
  ),
  'official.vision.configs.retinanet.RetinaNetTask': _Evaluator(
    'official_ext.vision.evaluation.boxes', targets.WITH_BOXES
  ),
  'official.vision.configs.maskrcnn.MaskRCNNTask': _Evaluator(
    'official_ext.vision.evaluation.boxes', targets.WITH_BOXES
  ),
  'official.vision.configs.semantic_segmentation.SemanticSegmentationTask': _Evaluator(
    'official_ext.vision.evaluation.pixel_classes', (targets.SEGMENTATION,)
  ),
  'official.nlp.tasks.sentence_prediction.SentencePredictionConfig': _Evaluator(
    'official_ext.language.evaluation.text_classes', (bert_targets.CLASSIFICATION,)
  ),
}


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext evaluate',
    "Evaluates the model of a run of Model Garden's image classification, detection, segmentation or text "
    'classification. Prints figures of each class, and writes them with pictures into RUN/evaluations. '
    'docs/how_to/evaluate.md.',
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument('model_dir', metavar='RUN', type=kind, help='the folder of the run')
  on = 'a folder of `official-ext prepare --for`; default: the validation data of the run'
  found.add_argument('--on', metavar='FOLDER', type=kind, help=on)
  split = 'of the folder; default: validation, or else test'
  found.add_argument('--split', choices=('train', 'validation', 'test'), help=split)
  name = 'the folder in RUN/evaluations; default: FOLDER-SPLIT, or validation_data'
  found.add_argument('--name', metavar='NAME', help=name)
  number = 'how many of the worst mistakes to show; default: 16'
  found.add_argument('--mistakes', type=arguments_lib.at_least(0), default=16, metavar='N', help=number)
  arguments_lib.add_run_arguments(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext evaluate ARGUMENTS`.

  Raises:
    UserError: with the flag, the run or the data.
  """
  known = _parser().parse_args(arguments)
  if known.name is not None and not re.fullmatch(r'[\w][\w.-]*', known.name):
    raise errors.UserError(f'--name={known.name}: expected letters, digits, _, . and -')
  from official_ext.cli import flags  # pylint: disable=g-import-not-at-top  # TensorFlow, as the next.

  flags.define_for_command()
  with preemption.interrupting():
    model_dir = os.path.expanduser(known.model_dir)
    from official_ext.training.trained import trained_run  # pylint: disable=g-import-not-at-top

    _evaluate(trained_run.read_params(model_dir, known.experiment, known.registry), model_dir, known)


def _evaluate(params: 'definitions.ExperimentConfig', model_dir: str, known: argparse.Namespace) -> None:
  from official_ext.training.evaluation import evaluated_data  # pylint: disable=g-import-not-at-top
  from official_ext.training.evaluation import report_files  # pylint: disable=g-import-not-at-top
  from official_ext.training.trained import trained_model  # pylint: disable=g-import-not-at-top

  evaluator = _evaluator_of(params)
  model = params.task.model
  data = evaluated_data.find(params, evaluator.kinds, model.num_classes, known.on or '', known.split or '')
  trained = trained_model.load(params, model_dir, known.which, known.ema == 'true')
  result = importlib.import_module(evaluator.module).evaluate(trained, data, known.mistakes)
  name = known.name or _name_of(data)
  folder = os.path.join(model_dir, report_files.FOLDER, name)
  facts = {
    'run': os.path.abspath(model_dir),
    'checkpoint': trained.checkpoint,
    'step': trained.step,
    'weights': trained.weights,
    'data': data.title,
    'input_path': str(data.config.input_path),
  }
  title = f'{os.path.basename(os.path.abspath(model_dir))}: {data.title}'
  report_files.write(folder, title, facts, result, trained.step)
  print(f'{trained.checkpoint} ({trained.weights} weights) on {data.title}')
  print('  '.join(f'{name} {round(value, _DIGITS)}' for name, value in result.summary.items()))
  for table in result.tables:
    print(f'\n{table.title}')
    print('\n'.join(report_files.table_lines(table)))
  print('')
  print(f'{folder}: {report_files.PAGE}, {report_files.REPORT}, {len(result.pictures)} pictures', flush=True)


def _evaluator_of(params: 'definitions.ExperimentConfig') -> _Evaluator:
  names = [f'{cls.__module__}.{cls.__qualname__}' for cls in type(params.task).__mro__]
  found = next((_EVALUATORS[name] for name in names if name in _EVALUATORS), None)
  if found is None:
    raise errors.UserError(
      f"task: {type(params.task).__name__} is unsupported; evaluate reads runs of Model Garden's image "
      'classification, RetinaNet, Mask R-CNN, semantic segmentation and sentence prediction'
    )
  return found


def _name_of(data: 'evaluated_data_lib.EvaluatedData') -> str:
  """The name of the folder of an evaluation, by its data."""
  if data.path != '--on':
    return 'validation_data'
  split = os.path.basename(str(data.config.input_path)).split('-')[0]
  return re.sub(r'[^\w.-]', '_', f'{os.path.basename(data.folder)}-{split}')
