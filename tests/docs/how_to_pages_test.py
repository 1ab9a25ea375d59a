"""The short pages of docs/how_to: their scripts write data and files, and their commands train on them."""

import json
import re
import shlex

import numpy as np
from official.common import registry_imports as of_model_garden  # noqa: F401
import pytest

import official_ext as ext
from official_ext.cli import main as cli
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import pretrained
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents
from tests import tiers

# Of experiments of Model Garden, whose settings are for hours.
FEW_STEPS = [
  f'--set=trainer.{name}=2'
  for name in ('train_steps', 'steps_per_loop', 'summary_interval', 'validation_interval', 'checkpoint_interval')
]
CHAT = '{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}'
# The page, the folder of its run, the metric of the evaluation and its least value.
PAGES = [
  ('own_images', 'runs/my_images', 'accuracy', 0.3),
  ('preferences', 'runs/preference', 'accuracy', 0.0),
  ('dpo', 'runs/dpo', 'accuracy', 0.0),
  ('kto', 'runs/kto', 'accuracy', 0.0),
  ('simpo', 'runs/simpo', 'accuracy', 0.0),
  ('orpo', 'runs/orpo', 'accuracy', 0.0),
  ('reward_model', 'runs/reward', 'accuracy', 0.0),
  ('text_classification', 'runs/texts', 'accuracy', 0.0),
  ('segmentation', 'runs/pixels', 'mean_iou', 0.001),
  ('detection', 'runs/boxes', 'AP', 0.0),
]


def small_model(folder):
  """What docs/how_to/fine_tune.md makes in half a minute, here without training."""
  np.random.seed(0)
  texts = [document['text'] for document in ext.python_topics.documents('train')][:20]
  tokenizer = ext.train_tokenizer(texts, 300, ['<|user|>', '<|assistant|>', '<|end|>'], CHAT)
  config = decoder_config.DecoderConfig(
    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1
  )
  pretrained.save(decoder.LanguageModel(config), str(folder))
  tokenizer.save(str(folder))


def commands(page):
  """The indented commands of a page, with their continued lines."""
  lines = re.findall(r'^    (\S.*)$', re.sub(r' \\\n +', ' ', page), re.MULTILINE)
  return [line for line in lines if line.startswith(('python train.py', 'official-ext'))]


@pytest.mark.slow
@tiers.parametrize('name, run, metric, least', PAGES, fast=1)
def test_the_page_trains(name, run, metric, least, run_train, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  page = documents.read(f'docs/how_to/{name}.md')
  if 'runs/small/model' in page:
    (tmp_path / 'runs/small').mkdir(parents=True)
    small_model(tmp_path / 'runs/small/model')
  for file, language, code in re.findall(
    r'^(?:The file `([^`]+)` becomes:\n\n)?```(python|yaml)\n(.*?)^```', page, re.DOTALL | re.MULTILINE
  ):
    if file:
      (tmp_path / file).write_text(code)
    else:
      assert language == 'python'
      exec(compile(code, name, 'exec'), {'__name__': 'page'})  # pylint: disable=exec-used
  for command in commands(page):
    program, *arguments = shlex.split(command)
    if arguments[0] in ('train.py', 'train'):
      short = FEW_STEPS if arguments[0] == 'train' else []
      process = run_train([*arguments[1:], '--set=xla=false', *short], cwd=tmp_path, timeout=900)
      assert process.returncode == 0, process.stderr
    else:
      assert cli.main(arguments) == 0, command
  lines = [json.loads(line) for line in (tmp_path / run / 'events.jsonl').read_text().splitlines()]
  assert lines[-1]['event'] == 'finished'
  assert [line for line in lines if line['event'] == 'eval'][-1][metric] >= least


@pytest.mark.parametrize('name', [name for name, *_ in PAGES])
def test_the_experiments_that_a_page_names_exist(name):
  page = documents.read(f'docs/how_to/{name}.md')
  named = set(
    re.findall(r'`((?:\w+_(?:imagenet|pascal|coco|finetune)|semantic_segmentation|reward_model|bert/\w+))`', page)
  )
  assert named <= set(parser.experiment_names())
