"""The rooms of the project, their order, and the picture of both, read from the imports.

python -m tools.rooms            # lists imports that go up; writes docs/rooms.svg
"""

import ast
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ('official_ext', 'experiments')

# The rooms of official_ext from the ground up. A room may import those of the rows before its own, and itself.
ORDER = (
  ('errors', 'tf_internals', 'model_garden_internals', 'suggestions', 'keyed_draws'),
  ('files',),
  ('data', 'optimization', 'metrics', 'monitoring'),
  ('modeling', 'preparation'),
  ('config',),
  ('runtime',),
  ('step', 'checkpoints'),
  ('actions',),
  ('core',),
  ('fine_tuning',),
  ('checks',),
  ('runs',),
  ('curves', 'trackers'),
  ('queue',),
  ('sweeps',),
  ('engines',),
  ('console',),
  ('cli',),
)
# The modules of the rooms that make the loop, each from the ground up: a module may import those before it.
INSIDE: dict[str, tuple[str, ...]] = {
  'config': (
    'mesh_config',
    'trainer_parts',
    'definitions',
    'text_data',
    'yaml_text',
    'value_text',
    'flat_params',
    'overrides',
    'file_checks',
    'ranges',
    'checks',
    'epochs',
    'short_names',
    'parser',
  ),
  'runtime': (
    'failures',
    'preemption',
    'heartbeat',
    'visible_gpus',
    'invocation',
    'process_identity',
    'launcher',
    'hang_watch',
    'run_lock',
    'run_status',
    'cluster',
    'meeting',
    'workers',
    'processor',
    'mesh',
    'distribute',
  ),
  'step': (
    'step_state',
    'step_parts',
    'step_plan',
    'method_patch',
    'updates_watch',
    'gradient_tap',
    'step_means',
    'recomputation',
    'step_random',
    'collective_traces',
    'task_step',
    'updates',
    'executions',
    'input_shapes',
    'layer_calls',
    'sharding',
    'mesh_ops',
    'mesh_variables',
    'mesh_execution',
    'training_step',
    'inspection',
  ),
  'checkpoints': (
    'contents',
    'manifest_content',
    'state_file',
    'manifests',
    'rollbacks',
    'listing',
    'averaged_weights',
    'exports',
    'best_history',
    'best',
    'ema_checkpoints',
    'restoring',
    'retention',
    'run_notes',
    'manager',
    'training_lines',
    'warm_start',
  ),
  'actions': ('triggers', 'early_stopping', 'event_actions', 'keras_callbacks', 'reduce_lr_on_plateau'),
  'core': (
    'registration',
    'code_identity',
    'base_task',
    'text_task',
    'evaluation_length',
    'evaluation_state',
    'input_report',
    'base_evaluator',
    'loop_parts',
    'pace',
    'profiling',
    'training_input',
    'step_inputs',
    'step_planning',
    'no_training',
    'parameter_server',
    'synchronous',
    'base_trainer',
    'run_events',
    'boundaries',
    'loop_logs',
    'saving',
    'continuous_eval',
    'controller',
    'recovery',
    'run_record',
    'recorded_run',
    'owned_loop',
    'run_checks',
    'run_writers',
    'trained_model',
    'serving',
    'unset_fields',
    'data_service',
    'train_lib',
  ),
}

# Configurations flow one way, from the command line to the step: what reads them is for those rooms alone.
RESERVED = {
  'official_ext.config.parser': ('config', 'checks', 'cli'),
  'official_ext.config.overrides': ('config', 'checks', 'cli'),
  'official_ext.config.short_names': ('config', 'fine_tuning', 'checks', 'cli'),  # It gives some, and reads none.
}


def sources(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """Dotted module name -> path, of every module of the packages and of the top level."""
  paths = [path for package in PACKAGES for path in (root / package).rglob('*.py')] + sorted(root.glob('*.py'))
  parts = {path: path.relative_to(root).with_suffix('').parts for path in paths}
  return {'.'.join(name[:-1] if name[-1] == '__init__' else name): path for path, name in parts.items()}


@functools.cache
def _import_statements(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
  """(module, names that are imported from it) of each statement in some code; no names if the module is meant."""
  found: list[tuple[str, tuple[str, ...]]] = []
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      found += [(alias.name, ()) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0 and node.module, f'line {node.lineno}: a relative import'
      found.append((node.module, tuple(alias.name for alias in node.names)))
  return tuple(found)


def imports(path: pathlib.Path, known: set[str] | dict[str, pathlib.Path]) -> set[str]:
  """The modules that a file imports, anywhere in it: those of `known` in full, others by their package."""
  found = set()
  for module, names in _import_statements(path.read_text()):
    full = [f'{module}.{name}' for name in names] or [module]
    modules = [name if name in known else module for name in full]
    found.update(name if name in known else name.split('.')[0] for name in modules)
  return found


def graph(root: pathlib.Path) -> dict[str, set[str]]:
  """Module -> what it imports."""
  known = sources(root)
  return {name: imports(path, known) for name, path in known.items()}


def room_of(module: str) -> str:
  """The room of a module of official_ext; '' for the package itself, which is the public face."""
  return (module.split('.') + ['', ''])[1]


def violations(root: pathlib.Path) -> list[str]:
  """Every import that goes up, and every module without a place, as a line of text."""
  found = []
  for name, imported in graph(root).items():
    if within(name, 'official_ext'):
      found += _without_a_place(name)
    for other in imported:
      reason = _refusal(name, other)
      if reason:
        found.append(f'{name} must not import {other}: {reason}')
  return sorted(found)


def within(name: str, package: str) -> bool:
  """Whether a module is a package, or in it."""
  return name == package or name.startswith(package + '.')


def _without_a_place(name):
  room = room_of(name)
  if room and not any(room in row for row in ORDER):
    return [f'{name}: the room {room} has no place in the order of rooms (tools/rooms.py)']
  if room in INSIDE and name.count('.') == 2 and name.rpartition('.')[2] not in INSIDE[room]:
    return [f'{name}: has no place in the order of its room (tools/rooms.py)']
  return []


def _refusal(name, other):
  """Why a module must not import another; '' if it may."""
  if other == 'keras':
    return 'Keras 3; the project is written for tf_keras'
  if within(name, 'official_ext'):
    if other in ('registry_imports', 'train', 'tests', 'benchmarks', 'tools') or within(other, 'experiments'):
      return 'the library knows none of its users'
    return _refusal_inside(name, other) if within(other, 'official_ext') else ''
  if within(name, 'experiments'):
    own = '.'.join(name.split('.')[:2])
    if other in ('registry_imports', 'train', 'tests', 'benchmarks', 'tools'):
      return 'an experiment knows the library, and nothing above itself'
    if within(other, 'experiments') and not within(other, own) and other != 'experiments':
      return 'another experiment'
    return 'experiments import official_ext itself, the public face' if other.startswith('official_ext.') else ''
  if name == 'train' and within(other, 'experiments'):
    return 'registry_imports does'
  if name == 'registry_imports' and not (within(other, 'experiments') or other == 'official'):
    return 'it lists what registers experiments'
  return ''


def _refusal_inside(name, other):
  here, there = room_of(name), room_of(other)
  if other in RESERVED and here and here not in RESERVED[other]:
    return f'only {", ".join(RESERVED[other])} read configurations'
  if not here or not there:  # The face loads rooms when it is asked; `import official_ext` selects the Keras.
    return ''
  if here != there:
    rows = {room: number for number, row in enumerate(ORDER) for room in row}
    if rows.get(there, -1) < rows.get(here, len(ORDER)):
      return ''
    return f'{there} is {"beside" if rows.get(there) == rows.get(here) else "above"} {here}'
  order = INSIDE.get(here, ())
  module, imported = name.rpartition('.')[2], other.rpartition('.')[2]
  if module in order and imported in order and order.index(imported) >= order.index(module):
    return f'{imported} comes after {module} in {here}'
  return ''


def circles(root: pathlib.Path) -> list[str]:
  """Modules that import themselves by way of others."""
  edges = graph(root)
  found = []
  for start in edges:
    seen, pending = set(), [start]
    while pending:
      for name in edges.get(pending.pop(), ()):
        if name not in seen:
          seen.add(name)
          pending.append(name)
    if start in seen:
      found.append(f'{start} imports itself, by way of others')
  return sorted(found)


def room_edges(root: pathlib.Path) -> dict[tuple[str, str], int]:
  """(room, room that it imports) -> how many imports of modules."""
  edges: dict[tuple[str, str], int] = {}
  for name, imported in graph(root).items():
    for other in imported:
      pair = room_of(name), room_of(other)
      if within(name, 'official_ext') and within(other, 'official_ext') and all(pair) and pair[0] != pair[1]:
        edges[pair] = edges.get(pair, 0) + 1
  return edges


# The picture.

_WIDTH, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 980, 86, 196, 46


def picture(root: pathlib.Path) -> str:
  """The rooms as SVG: a row for each level, the highest on top; lines are imports, as thick as they are many."""
  lines_of: dict[str, int] = {}
  for name, path in sources(root).items():
    if within(name, 'official_ext') and room_of(name):
      lines_of[room_of(name)] = lines_of.get(room_of(name), 0) + len(path.read_text().splitlines())
  rows = [[room for room in row if room in lines_of] for row in reversed(ORDER)]
  rows = [row for row in rows if row]
  place = {
    room: (_WIDTH * (column + 1) / (len(row) + 1) + (40 if number % 2 else -40) * (len(row) == 1), 40 + number * _ROW)
    for number, row in enumerate(rows)
    for column, room in enumerate(row)
  }
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {len(rows) * _ROW + 20}" font-family="sans-serif">',
    f'<rect width="{_WIDTH}" height="{len(rows) * _ROW + 20}" fill="white"/>',
  ]
  for (room, other), number in sorted(room_edges(root).items()):
    (x1, y1), (x2, y2) = place[room], place[other]
    color = '#b00020' if y2 <= y1 else '#7a8ca0'
    parts.append(
      f'<path d="M{x1:.0f},{y1 + _BOX_HEIGHT / 2:.0f} C{x1:.0f},{y1 + 70:.0f} {x2:.0f},{y2 - 60:.0f} {x2:.0f},'
      f'{y2 - _BOX_HEIGHT / 2:.0f}" fill="none" stroke="{color}" stroke-opacity="0.55" '
      f'stroke-width="{1 + (number > 3) + 2 * (number > 10)}"/>'
    )
  for room, (x, y) in place.items():
    parts.append(
      f'<rect x="{x - _BOX_WIDTH / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" '
      'rx="6" fill="#eef3f8" stroke="#34495e"/>'
      f'<text x="{x:.0f}" y="{y - 3:.0f}" text-anchor="middle" font-size="16" fill="#1b2733">{room}</text>'
      f'<text x="{x:.0f}" y="{y + 15:.0f}" text-anchor="middle" font-size="11" fill="#5a6b7b">'
      f'{_rounded(lines_of[room])} lines</text>'
    )
  return '\n'.join([*parts, '</svg>\n'])


def _rounded(number):
  """To two digits, so that the picture changes only with the house."""
  digits = max(0, len(str(number)) - 2)
  return round(number, -digits)


def main() -> int:
  """Writes the picture; prints what is out of order."""
  (ROOT / 'docs/rooms.svg').write_text(picture(ROOT))
  found = violations(ROOT) + circles(ROOT)
  print('\n'.join(found or ['All imports go downward.']))
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main())
