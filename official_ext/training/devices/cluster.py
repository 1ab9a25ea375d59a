"""The workers of one run: who they are, from TF_CONFIG or from SLURM.

TF_CONFIG names the workers' addresses and which of them this process is. A SLURM job step of several tasks needs none:
this module derives it from the step's variables, so that `srun python train.py ...` is enough. The first worker, or the
one called chief, is the chief: it writes, and decides for all.
"""

from collections.abc import Mapping, MutableMapping
import dataclasses
import json
import os
import re

from official_ext.base import errors

# SLURM hands out no ports. Below the range that the kernel takes for outgoing connections.
_SLURM_PORTS = range(15000, 31000)
_SLURM_PORTS_PER_JOB = 16


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The workers that train together.

  Attributes:
    addresses: host:port of each, the chief's first.
    index: which of them this process is.
  """

  addresses: tuple[str, ...]
  index: int

  @property
  def is_chief(self) -> bool:
    return self.index == 0

  def name(self, index: int) -> str:
    """The name of a worker in messages."""
    return f'worker {index} ({self.addresses[index]})'


def find(environment: MutableMapping[str, str] | None = None) -> Cluster | None:
  """The cluster that this process belongs to; under SLURM, TF_CONFIG is set in the environment.

  Args:
    environment: the environment variables, the process's by default.

  Returns:
    None if this process trains, or evaluates, by itself.

  Raises:
    UserError: the variables make no sense.
  """
  environment = os.environ if environment is None else environment
  if not environment.get('TF_CONFIG'):
    config = _slurm_config(environment)
    if config is None:
      return None
    environment['TF_CONFIG'] = json.dumps(config)
  jobs, task = read_tf_config(environment)
  addresses = [*jobs.get('chief', []), *jobs.get('worker', [])]
  if jobs.get('ps') or len(addresses) < 2 or task.get('type') == 'evaluator':
    return None
  kind, index = task.get('type'), task.get('index')
  if kind not in ('chief', 'worker') or not isinstance(index, int) or not 0 <= index < len(jobs.get(kind, [])):
    raise errors.UserError(f"TF_CONFIG: task {json.dumps(task)} is not in the cluster's worker list")
  for address in addresses:
    if not re.fullmatch(r'\S+:\d+', str(address)):
      raise errors.UserError(f'TF_CONFIG: {address!r} is not an address, which is host:port')
  return Cluster(tuple(addresses), index + (len(jobs.get('chief', [])) if kind == 'worker' else 0))


def read_tf_config(environment: Mapping[str, str] | None = None) -> tuple[dict[str, list[str]], dict[str, object]]:
  """The parts of TF_CONFIG: job name -> addresses, and this process's task; both {} if it is unset.

  Raises:
    UserError: it cannot be read.
  """
  environment = os.environ if environment is None else environment
  try:
    config = json.loads(environment.get('TF_CONFIG') or '{}')
    jobs, task = config.get('cluster', {}), config.get('task', {})
    return {name: list(addresses) for name, addresses in jobs.items()}, dict(task)
  except (json.JSONDecodeError, AttributeError, TypeError, ValueError):
    raise errors.UserError('TF_CONFIG: the environment variable holds no JSON object as TensorFlow has it') from None


# SLURM.


def _slurm_config(environment: Mapping[str, str]) -> dict[str, object] | None:
  """TF_CONFIG for a task of a SLURM job step; None if there is but one task, or no SLURM."""
  num_tasks = environment.get('SLURM_STEP_NUM_TASKS') or environment.get('SLURM_NTASKS') or '1'
  if 'SLURM_PROCID' not in environment or num_tasks == '1':
    return None
  try:
    hosts = expand_hosts(_first(environment, 'SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', 'SLURM_NODELIST'))
    counts = _tasks_per_node(environment, len(hosts), int(num_tasks))
    rank = int(environment['SLURM_PROCID'])
    number = int(environment.get('SLURM_JOB_ID', 0)) + int(environment.get('SLURM_STEP_ID', 0))
  except (KeyError, ValueError) as error:
    raise errors.UserError(f'SLURM: the variables of this job step cannot be read: {error}') from None
  first_port = _SLURM_PORTS[number * _SLURM_PORTS_PER_JOB % len(_SLURM_PORTS)]
  places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
  if len(places) != int(num_tasks) or not 0 <= rank < len(places):
    raise errors.UserError(f'SLURM: task {rank} of {num_tasks}, and the nodes have room for {len(places)} tasks')
  here = (environment.get('SLURM_NODEID', str(places[rank][0])), environment.get('SLURM_LOCALID', str(places[rank][1])))
  if here != tuple(map(str, places[rank])):
    raise errors.UserError('SLURM: tasks are not numbered node by node: start them with srun --distribution=block')
  workers = [f'{hosts[node]}:{first_port + local}' for node, local in places]
  return {'cluster': {'worker': workers}, 'task': {'type': 'worker', 'index': rank}}


def _first(environment: Mapping[str, str], *names: str) -> str:
  for name in names:
    if environment.get(name):
      return environment[name]
  raise KeyError(names[0])


def _tasks_per_node(environment: Mapping[str, str], num_nodes: int, num_tasks: int) -> list[int]:
  """How many tasks each node has, from `2(x3),1`; spread evenly if SLURM does not report it."""
  text = environment.get('SLURM_STEP_TASKS_PER_NODE') or environment.get('SLURM_TASKS_PER_NODE')
  if not text:
    return [num_tasks // num_nodes + (node < num_tasks % num_nodes) for node in range(num_nodes)]
  counts: list[int] = []
  for part in text.split(','):
    match = re.fullmatch(r'(\d+)(?:\(x(\d+)\))?', part)
    if match is None:
      raise ValueError(f'tasks per node: {text}')
    counts += [int(match.group(1))] * int(match.group(2) or 1)
  return counts


def expand_hosts(text: str) -> list[str]:
  """The hosts of a SLURM node list, in its order: `n[08-10],m1` is n08, n09, n10, m1.

  Raises:
    ValueError: it is not such a list.
  """
  if not re.fullmatch(r'([^\[\]]|\[[^\[\]]+\])+', text):
    raise ValueError(f'node list: {text!r}')
  hosts: list[str] = []
  for part in re.findall(r'(?:[^,\[\]]|\[[^\]]*\])+', text):
    expanded = ['']
    for literal, ranges in re.findall(r'([^\[\]]+)|\[([^\]]*)\]', part):
      tails = [literal] if literal else [tail for item in ranges.split(',') for tail in _expand_range(item)]
      expanded = [head + tail for head in expanded for tail in tails]
    hosts += expanded
  return hosts


def _expand_range(text: str) -> list[str]:
  first, _, last = text.partition('-')
  return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
