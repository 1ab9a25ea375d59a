"""Summarises a run on half a screen: `python -m official_ext.cli.summary MODEL_DIR`."""

from collections.abc import Mapping, Sequence
import os
import sys

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.base.files import paths as paths_lib
from official_ext.base.run_folder import run_status
from official_ext.training.checkpoints import best_history
from official_ext.training.checkpoints import manifests
from official_ext.training.writers import events_writer
from official_ext.training.writers import progress


def lines(model_dir: str) -> list[str]:
  """Summarises a run from the files in its folder.

  Args:
    model_dir: the folder of a run that has ended or is still active.

  Returns:
    Lines of text: status, the last evaluation's metrics and the best one's, checkpoints, the TensorBoard command.

  Raises:
    UserError: the folder has no run.
  """
  record = run_status.read(model_dir)
  if record is None:
    found = 'run.json' in paths_lib.names(model_dir)
    raise errors.UserError(f'{model_dir}: ' + ('run.json cannot be read' if found else 'no run.json, so no run'))
  rows = [('status', _status(record))]
  if record.get('skipped_updates'):
    rows.append(
      (
        'skipped',
        f'{record["skipped_updates"]} updates that were not finite, or whose loss was a spike: '
        f'update_skipped in {os.path.join(model_dir, "events.jsonl")}',
      )
    )
  evaluations = _evaluations(model_dir)
  if evaluations:
    rows.append(('validation', _metrics(evaluations[-1])))
    rows += _best(model_dir, evaluations)
  checkpoints = [os.path.basename(path) for path in manifests.saved_paths(model_dir)]
  if checkpoints:
    rows.append(('checkpoints', f'{os.path.join(model_dir, "")}: {", ".join(checkpoints)}'))
  rows.append(('TensorBoard', f'{_program("tensorboard")} --logdir={model_dir}'))
  return [model_dir] + [f'  {name:<12} {text}' for name, text in rows]


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the summary of the folders named; returns the exit status."""
  folders = list(sys.argv[1:] if argv is None else argv)
  if not folders:
    print('error: usage: python -m official_ext.cli.summary MODEL_DIR...', file=sys.stderr)
    return errors.UserError.exit_status
  try:
    for folder in folders:
      print('\n'.join(['', *lines(folder)]))
  except errors.UserError as e:
    print(f'error: {e}', file=sys.stderr)
    return errors.UserError.exit_status
  return 0


def _evaluations(model_dir: str) -> list[json_types.JsonObject]:
  """The evaluations by the run itself, and by those that ran beside it or after it, by step."""
  paths = paths_lib.matching(model_dir, r'events.*\.jsonl')
  try:
    events = [event for path in paths for event in events_writer.read_events(path) if event['event'] == 'eval']
  except OSError as error:
    raise errors.UserError(f'{error.filename or model_dir}: cannot be read: {error.strerror or error}') from error
  return sorted(events, key=lambda event: (event['step'], event['time']))


def _status(record: json_types.JsonObject) -> str:
  text = record['status']
  if record.get('step') is not None:
    text += f' at step {record["step"]}' + (f' of {record["train_steps"]}' if record.get('train_steps') else '')
  return text + (f': {record["error"]}' if record.get('error') else f' ({record.get("devices")})')


def _metrics(event: Mapping[str, object]) -> str:
  values = {name: value for name, value in event.items() if name not in ('time', 'event', 'step', 'seconds')}
  return '  '.join([*progress.format_values(values), f'(step {event["step"]})'])


def _best(model_dir: str, evaluations: Sequence[dict[str, object]]) -> list[tuple]:
  """The row about the best evaluation, if the run exports its best checkpoint."""
  path = os.path.join(model_dir, 'params.yaml')
  if not tf.io.gfile.exists(path):
    return []
  trainer = yaml_text.load_file(path, 'params.yaml').get('trainer', {})
  folder, metric = trainer.get('best_checkpoint_export_subdir'), trainer.get('best_checkpoint_eval_metric')
  if not folder or not metric:
    return []
  folder = os.path.join(model_dir, folder, '')
  history = best_history.read(folder, metric.split('|'))
  measured = [(entry['value'], entry['step']) for entry in history if entry['value'] is not None]
  if not history:  # No checkpoint is kept so far.
    measured = [(event[metric], event['step']) for event in evaluations if isinstance(event.get(metric), (int, float))]
  if not measured:
    return []
  choose = max if trainer.get('best_checkpoint_metric_comp') == 'higher' else min
  value, step = choose(measured, key=lambda pair: pair[0])
  return [('best', f'{metric} {value:.4g}  (step {step}), in {folder}')]


def _program(name: str) -> str:
  """The command for a program of this Python environment: its path, if it is not on the PATH."""
  path = os.path.join(os.path.dirname(sys.executable), name)
  on_path = os.path.dirname(sys.executable) in os.environ.get('PATH', '').split(os.pathsep)
  return name if on_path or not os.path.exists(path) else os.path.relpath(path)


if __name__ == '__main__':
  sys.exit(main())
