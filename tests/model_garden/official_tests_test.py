"""Model Garden's own tests of its training loop pass with this library's Trainer in place of the original."""

import json
import pathlib

from tests import tiers
from tests import train_processes

SCRIPT = pathlib.Path(__file__).with_name('run_official_tests.py')

# From module to (tests, skipped with the stock Trainer on a machine without accelerators, whether it makes a Trainer).
EXPECTED = {
  'official.core.base_trainer_test': (30, 9, True),
  'official.core.train_lib_test': (47, 31, True),
  'official.core.actions_test': (8, 5, False),
  'official.core.train_utils_test': (14, 2, False),
}


@tiers.parametrize('module', sorted(EXPECTED), fast=['official.core.train_utils_test'])
def test_module_passes_with_our_trainer(module, train_server):
  process = train_processes.run(train_server(), [module], timeout=400, env=train_processes.UNOPTIMISED, script=SCRIPT)
  assert process.stdout.strip(), process.stderr[-4000:]
  record = json.loads(process.stdout.strip().splitlines()[-1])
  num_tests, num_skipped, makes_trainers = EXPECTED[module]
  assert record['failed'] == [], process.stderr[-8000:]
  assert process.returncode == 0, process.stderr[-4000:]
  assert record['tests'] == num_tests
  assert record['skipped'] <= num_skipped
  assert record['only_ours'], record['trainers']
  assert ('official_ext.training.loop.base_trainer.Trainer' in record['trainers']) == makes_trainers, record['trainers']
