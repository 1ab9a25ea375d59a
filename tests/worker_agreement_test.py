"""Two real workers with other data or other code than each other are refused, before anything is written."""

import re

import numpy as np

from tests import own_tasks
from tests import tiers
from tests import train_processes

LEGEND = r'not the same on all workers, worker 0 \(\S+:\d+\) -> worker 1 \(\S+:\d+\): '


def run_two(server, folder, environments):
  """(exit statuses, outputs) of two workers, each with changes of its environment."""
  processes = []
  for rank, changes in enumerate(environments):
    variables = {**train_processes.slurm_variables(rank, step='7'), **changes}
    flags = [*own_tasks.FLAGS, '--mode=train', f'--model_dir={folder / "run"}']
    processes.append(server.start(flags, folder / f'log{rank}', env=variables, cwd=folder))
  statuses = [process.wait(timeout=300) for process in processes]
  return statuses, [(folder / f'log{rank}').read_text() for rank in range(2)]


@tiers.parametrize('other', ['nothing', 'data', 'code'], fast=['data'])
def test_workers_must_have_the_same_data_and_code(train_server, tmp_path, other):
  np.save(tmp_path / 'a.npy', np.ones([8, 1], np.float32))
  np.save(tmp_path / 'b.npy', np.ones([12, 1], np.float32))
  environments = []
  for rank in range(2):
    place = own_tasks.write(tmp_path / f'machine{rank}' / ('deep' * rank))
    data = tmp_path / ('b.npy' if other == 'data' and rank else 'a.npy')
    environments.append({'PYTHONPATH': str(place), 'OWN_DATA': str(data)})
    if other == 'code' and rank:
      (place / 'own_package' / 'losses.py').write_text(own_tasks.LOSSES + '# Another version.\n')
  statuses, outputs = run_two(train_server(), tmp_path, environments)
  if other == 'nothing':
    assert statuses == [0, 0], outputs
    return
  pattern = {'data': r'data: ' + LEGEND + r'.*task.train_data: num_examples: 8 -> 12', 'code': r'code: ' + LEGEND}[
    other
  ]
  assert statuses == [2, 2], outputs
  for text in outputs:
    assert re.search('^error: ' + pattern, text, re.M), text
    assert 'Traceback' not in text
  if other == 'code':
    assert re.search(r'own_package/losses.py: [0-9a-f]{12} -> [0-9a-f]{12}; start all', outputs[0])
    assert 'task.py' not in outputs[0].partition('code: ')[2]
  assert not (tmp_path / 'run' / 'run.json').exists()
