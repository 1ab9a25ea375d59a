"""The packages of the project, their order, and a picture of both, read from the imports.

python -m tools.layers           # lists imports that go up; writes docs/images/packages.svg
"""

import ast
import functools
import importlib.util
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ('official_ext', 'experiments')

# The packages of official_ext from the ground up. A package may import those of the rows before its own, and itself.
ORDER = (
  ('base',),
  ('data',),
  ('training',),
  ('language', 'operations', 'vision'),
  ('deployment',),
  ('cli',),
)
# The imports allowed within official_ext, for packages that may import fewer than all below them.
ONLY = {'operations': ('base',)}
# The packages in a package, from the ground up in the same way.
SUBPACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
  'training': (
    ('metrics', 'model_parts', 'optimization', 'writers'),
    ('config',),
    ('devices',),
    ('step', 'checkpoints'),
    ('actions',),
    ('record',),
    ('tasks',),
    ('loop',),
    ('diagnosis', 'trained'),
    ('evaluation',),
  ),
  'language': (('text',), ('modeling',), ('fine_tuning', 'serving', 'evaluation', 'preview')),
  'vision': (('conversion', 'preview'), ('evaluation',)),
  'operations': (
    ('runs', 'launch', 'doctor'),
    ('curves', 'imports'),
    ('queue',),
    ('run_interface',),
    ('mcp_server',),
    ('sweeps',),
    ('engines',),
    ('console',),
  ),
}
# The modules of the packages that make the loop, each from the ground up: a module may import those before it.
INSIDE: dict[str, tuple[str, ...]] = {
  'training.config': (
    'mesh_config',
    'definitions',
    'overrides',
    'ranges',
    'checks',
    'epochs',
    'short_names',
    'parser',
    'registries',
  ),
  'training.devices': (
    'signals',
    'device_types',
    'hang_watch',
    'cluster',
    'mesh_strategy',
    'workers',
    'mesh',
    'distribute',
  ),
  'training.step': (
    'keras_version',
    'observers',
    'step_plan',
    'gradient_tap',
    'step_random',
    'task_step',
    'updates',
    'mesh_execution',
    'training_step',
    'inspection',
  ),
  'training.checkpoints': (
    'manifests',
    'contents',
    'exported_weights',
    'listing',
    'best',
    'manager',
    'training_lines',
    'warm_start',
  ),
  'training.actions': (
    'triggers',
    'plateau',
    'keras_callbacks',
  ),
  'training.record': (
    'code_identity',
    'pace',
    'profiling',
    'run_events',
    'run_record',
  ),
  'training.tasks': (
    'base_task',
    'supervised_task',
    'model_garden',
    'loop_task',
  ),
  'training.loop': (
    'training_input',
    'garden',
    'base_evaluator',
    'base_trainer',
    'saving',
    'controller',
    'run_options',
    'recovery',
    'run_checks',
    'train_lib',
  ),
}

# Configurations flow one way, from the command line to the step: only those packages may read them.
RESERVED = {
  'official_ext.training.config.parser': ('training.config', 'training.diagnosis', 'training.trained', 'cli'),
  'official_ext.training.config.overrides': ('training.config', 'training.diagnosis', 'cli'),
  # Fine-tuning registers short names, and reads none.
  'official_ext.training.config.short_names': (
    'training.config',
    'language.fine_tuning',
    'training.diagnosis',
    'cli',
  ),
}


def sources(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """Dotted module name -> path, of every module of the packages and of the top level."""
  paths = [path for package in PACKAGES for path in (root / package).rglob('*.py')] + sorted(root.glob('*.py'))
  parts = {path: path.relative_to(root).with_suffix('').parts for path in paths}
  return {'.'.join(name[:-1] if name[-1] == '__init__' else name): path for path, name in parts.items()}


@functools.cache
def _import_statements(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
  """(module, imported names) of each statement; no names if the module is meant; leading dots if it is relative."""
  found: list[tuple[str, tuple[str, ...]]] = []
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      found += [(alias.name, ()) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      found.append(('.' * node.level + (node.module or ''), tuple(alias.name for alias in node.names)))
  return tuple(found)


def imports(path: pathlib.Path, known: set[str] | dict[str, pathlib.Path], name: str = '') -> set[str]:
  """The modules that the file of module `name` imports: those of `known` in full, others by their package."""
  found = set()
  package = name if path.stem == '__init__' else name.rpartition('.')[0]
  for relative, names in _import_statements(path.read_text()):
    module = importlib.util.resolve_name(relative, package)
    full = [f'{module}.{name}' for name in names] or [module]
    modules = [name if name in known else module for name in full]
    found.update(name if name in known else name.split('.')[0] for name in modules)
  return found


def graph(root: pathlib.Path) -> dict[str, set[str]]:
  """Module -> its imports."""
  known = sources(root)
  return {name: imports(path, known, name) for name, path in known.items()}


def package_of(module: str) -> str:
  """The package of a module of official_ext; '' for official_ext itself, which is the public face."""
  return (module.split('.') + ['', ''])[1]


def subpackage_of(module: str) -> str:
  """`training.step` for a module in it; the package for one that is in no part of an ordered package."""
  parts = module.split('.')
  package = package_of(module)
  known = {name for row in SUBPACKAGES.get(package, ()) for name in row}
  return f'{package}.{parts[2]}' if len(parts) > 2 and parts[2] in known else package


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
  package, subpackage = package_of(name), subpackage_of(name)
  if package and not any(package in row for row in ORDER):
    return [f'{name}: the package {package} has no place in the order of packages (tools/layers.py)']
  if package in SUBPACKAGES and subpackage == package and name.count('.') > 1:
    return [f'{name}: has no place in the order of {package} (tools/layers.py)']
  if subpackage in INSIDE and name.count('.') == 3 and name.rpartition('.')[2] not in INSIDE[subpackage]:
    return [f'{name}: has no place in the order of {subpackage} (tools/layers.py)']
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
    return 'it lists the modules that register experiments'
  return ''


def _refusal_inside(name, other):
  here, there = package_of(name), package_of(other)
  inner, inner_there = subpackage_of(name), subpackage_of(other)
  if other in RESERVED and here and inner not in RESERVED[other]:
    return f'only {", ".join(RESERVED[other])} read configurations'
  if not here or not there:  # The face loads packages when it is asked; `import official_ext` selects the Keras.
    return ''
  if here != there:
    if here in ONLY and there not in ONLY[here]:
      return f'{here} imports only {", ".join(ONLY[here])}'
    return _refusal_by_rows(ORDER, here, there)
  if inner != inner_there:
    rows = SUBPACKAGES.get(here, ())
    return _refusal_by_rows(rows, inner.rpartition('.')[2], inner_there.rpartition('.')[2])
  order = INSIDE.get(inner, ())
  module, imported = name.rpartition('.')[2], other.rpartition('.')[2]
  if module in order and imported in order and order.index(imported) >= order.index(module):
    return f'{imported} comes after {module} in {inner}'
  return ''


def _refusal_by_rows(rows, here, there):
  row_of = {name: number for number, row in enumerate(rows) for name in row}
  if row_of.get(there, -1) < row_of.get(here, len(rows)):
    return ''
  return f'{there} is {"beside" if row_of.get(there) == row_of.get(here) else "above"} {here}'


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


def package_edges(root: pathlib.Path) -> dict[tuple[str, str], int]:
  """(package, package that it imports) -> the number of imports of modules."""
  edges: dict[tuple[str, str], int] = {}
  for name, imported in graph(root).items():
    for other in imported:
      pair = package_of(name), package_of(other)
      if within(name, 'official_ext') and within(other, 'official_ext') and all(pair) and pair[0] != pair[1]:
        edges[pair] = edges.get(pair, 0) + 1
  return edges


# The picture.

_WIDTH, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 980, 140, 360, 100
_SIDE = 70  # Boxes of a row with three reach over the width.


def picture(root: pathlib.Path) -> str:
  """The packages as SVG: a row for each level, the highest on top; lines are imports, thicker for more."""
  lines_of: dict[str, int] = {}
  parts_of: dict[str, set[str]] = {}
  for name, path in sources(root).items():
    package = package_of(name) if within(name, 'official_ext') else ''
    if package:
      lines_of[package] = lines_of.get(package, 0) + len(path.read_text().splitlines())
      if (name.count('.') == 3 or subpackage_of(name) != package) and path.parent.name != 'templates':
        parts_of.setdefault(package, set()).add(name.split('.')[2])
  rows = [[package for package in row if package in lines_of] for row in reversed(ORDER)]
  rows = [row for row in rows if row]
  place = {
    package: (_WIDTH * (column + 1) / (len(row) + 1) + (0, 120)[len(row) == 1] * (-1) ** number, 60 + number * _ROW)
    for number, row in enumerate(rows)
    for column, package in enumerate(row)
  }
  if any(len(row) > 1 for row in rows):
    place = {
      name: (x if abs(x - _WIDTH / 2) < 150 else _WIDTH / 2 + (x - _WIDTH / 2) * 1.5, y)
      for name, (x, y) in place.items()
    }
  height = len(rows) * _ROW
  left, width = -_SIDE, _WIDTH + 2 * _SIDE
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left} 0 {width} {height}" font-family="sans-serif">',
    f'<rect x="{left}" width="{width}" height="{height}" fill="white"/>',
  ]
  for (package, other), number in sorted(package_edges(root).items()):
    (x1, y1), (x2, y2) = place[package], place[other]
    color = '#b00020' if y2 <= y1 else '#7a8ca0'
    parts.append(
      f'<path d="M{x1:.0f},{y1 + _BOX_HEIGHT / 2:.0f} C{x1:.0f},{y1 + 90:.0f} {x2:.0f},{y2 - 80:.0f} {x2:.0f},'
      f'{y2 - _BOX_HEIGHT / 2:.0f}" fill="none" stroke="{color}" stroke-opacity="0.55" '
      f'stroke-width="{1 + (number > 10) + 2 * (number > 50)}"/>'
    )
  for package, (x, y) in place.items():
    texts = [(package, 18, '#1b2733')]
    names = ', '.join(_ordered_parts(package, parts_of.get(package, set())))
    texts += [(line, 11, '#1b2733') for line in textwrap.wrap(names, 60)]
    texts.append((f'{_rounded(lines_of[package])} lines', 11, '#5a6b7b'))
    parts.append(
      f'<rect x="{x - _BOX_WIDTH / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" '
      'rx="6" fill="#eef3f8" stroke="#34495e"/>'
    )
    top = y - 9 * (len(texts) - 1) + 4
    for number, (text, size, color) in enumerate(texts):
      place_of = f'x="{x:.0f}" y="{top + 18 * number:.0f}" text-anchor="middle"'
      parts.append(f'<text {place_of} font-size="{size}" fill="{color}">{text}</text>')
  return '\n'.join([*parts, '</svg>\n'])


def _ordered_parts(package, names):
  """The names of the packages in a package, those that import others first."""
  order = [name for row in reversed(SUBPACKAGES.get(package, ())) for name in row]
  return sorted(names, key=lambda name: (order.index(name) if name in order else 0, name))


def _rounded(number):
  """To two digits, so that small changes of the code leave the picture unchanged."""
  digits = max(0, len(str(number)) - 2)
  return round(number, -digits)


def main() -> int:
  """Writes the picture; prints imports that are out of order."""
  (ROOT / 'docs/images/packages.svg').write_text(picture(ROOT))
  found = violations(ROOT) + circles(ROOT)
  print('\n'.join(found or ['All imports go downward.']))
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main())
