"""The page for users of TRL: its scripts and its commands have the same losses on the same records."""

import json
import re
import shlex
import types

from official.core import task_factory
import pytest
import transformers

from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests import documents
from tests.docs import how_to_pages_test
from tests.training.loop import small_run

PAGE = documents.read('docs/getting_started/from_trl.md')
NUM_STEPS, BATCH_SIZE = 50, 4
# The heading, the file of its records, the column whose text follows the prompt, and the micro-batches of an update.
METHODS = [
  ('Supervised fine-tuning', 'sums.jsonl', 'completion', 1),
  ('DPO', 'pairs.jsonl', 'chosen', 1),
  ('Supervised fine-tuning', 'sums.jsonl', 'completion', 2),
]


def section(heading):
  """(TRL's script, the flags of the command) of a section."""
  (text,) = re.findall(rf'^## {heading}\n(.*?)^## ', PAGE, re.DOTALL | re.MULTILINE)
  (script,) = re.findall(r'^In TRL:\n\n((?:    .*\n|\n)*)', text, re.MULTILINE)
  (command,) = how_to_pages_test.commands(text)
  return re.sub(r'^    ', '', script, flags=re.MULTILINE), shlex.split(command)[2:]


def accumulated(script, flags, number):
  """The script and the flags with as many micro-batches, of the same number of examples together."""
  size = BATCH_SIZE // number
  batch = f'per_device_train_batch_size={BATCH_SIZE},'
  assert batch in script
  script = script.replace(batch, f'per_device_train_batch_size={size}, gradient_accumulation_steps={number},')
  changed = {'--set=batch_size': size, '--set=grad_accum_steps': number}
  kept = [flag for flag in flags if flag.rpartition('=')[0] not in changed]
  return script, [*kept, *(f'{flag}={value}' for flag, value in changed.items())]


def in_order_of_training(flags, records, column, num_batches):
  """The records of all steps, as the run of the command reads them."""
  tokenizer = transformers.AutoTokenizer.from_pretrained('runs/small/model')
  by_tokens = {tuple(tokenizer(record['prompt'] + record[column])['input_ids']): record for record in records}
  (experiment,) = (flag.split('=')[1] for flag in flags if flag.startswith('--experiment='))
  settings = [flag.removeprefix('--set=') for flag in flags if flag.startswith('--set=')]
  # As `--mode=train` does: nothing is held out.
  params = parser.parse_configuration(
    types.SimpleNamespace(experiment=experiment, set=[*settings, 'task.validation_share=0', 'task.train_data.seed=0']),
    print_return=False,
  )
  found = []
  for batch, _ in zip(task_factory.get_task(params.task).build_inputs(params.task.train_data), range(num_batches)):
    rows = batch['input_ids'] if 'input_ids' in batch else batch['chosen_input_ids']
    for row in rows.numpy().reshape(-1, rows.shape[-1]).tolist():
      found += [record for tokens, record in by_tokens.items() if tuple(row[: len(tokens)]) == tokens]
  assert len(found) == NUM_STEPS * BATCH_SIZE
  return found


def vary_lengths(path, column):
  """Makes answers of a file longer, so that micro-batches have different numbers of learned tokens."""
  records = [json.loads(line) for line in path.read_text().splitlines()]
  for number, record in enumerate(records):
    record[column] += ' Yes.' * (number % 5)
  path.write_text('\n'.join(map(json.dumps, records)) + '\n')


@pytest.mark.slow
@pytest.mark.parametrize(('heading', 'file', 'column', 'number'), METHODS)
def test_losses_are_those_of_trl(heading, file, column, number, run_train, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'runs/small').mkdir(parents=True)
  how_to_pages_test.small_model(tmp_path / 'runs/small/model')
  for code in documents.code(PAGE):
    exec(compile(code, 'page', 'exec'), {})  # pylint: disable=exec-used
  script, flags = section(heading)
  if number > 1:
    script, flags = accumulated(script, flags, number)
    vary_lengths(tmp_path / file, column)
  process = run_train([*flags, '--set=xla=false'], cwd=tmp_path)
  assert process.returncode == 0, process.stderr
  (folder,) = (tmp_path / flag.split('=')[1] for flag in flags if flag.startswith('--model_dir='))
  ours = [line['training_loss'] for line in small_run.events(folder, 'train')]

  records = [json.loads(line) for line in (tmp_path / file).read_text().splitlines()]
  lines = [json.dumps(record) for record in in_order_of_training(flags, records, column, NUM_STEPS * number)]
  (tmp_path / file).write_text('\n'.join(lines) + '\n')
  namespace = {}
  exec(compile(script, 'trl', 'exec'), namespace)  # pylint: disable=exec-used
  theirs = [line['loss'] for line in namespace['trainer'].state.log_history if 'loss' in line]
  assert len(ours) == len(theirs) == NUM_STEPS
  assert ours == pytest.approx(theirs, abs=1e-4)
  assert ours[-1] < 0.9 * ours[0]
