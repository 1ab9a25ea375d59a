"""Notes which weights a checkpoint holds if `ema` keeps their moving averages, and restores them.

One rule: while a run trains, the model has the raw weights and the optimizer the averages, and so has `ckpt-N`. In
checkpoints for use (`best/`, `ema_checkpoints/`), averages and raw weights have changed places. The manifest notes
which, under `weights`, and a restore puts both back to where a training has them.
"""

import os

from official.core import train_utils
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.checkpoints import contents as contents_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.optimization import ema_optimizer

RAW, AVERAGED = 'raw', 'averaged'
SLOT = 'average'
# The names of exported checkpoints without a note, such as Model Garden's own.
_AVERAGED_NAMES = (train_utils.BEST_CHECKPOINT_NAME, 'average_weights')


def note(checkpoint: tf.train.Checkpoint) -> dict[str, str]:
  """The entry of a manifest that says which weights the model has in a checkpoint that is written now."""
  ema = ema_optimizer.find(getattr(checkpoint, 'optimizer', None))
  return {'weights': AVERAGED if ema is not None and ema.is_swapped else RAW}


def held(path: str, contents: contents_lib.Contents) -> str:
  """Which weights the model has in a checkpoint: AVERAGED, or RAW, also if there are no averages."""
  noted = manifests.entries(path).get('weights')
  if noted in (RAW, AVERAGED):
    return noted
  is_export = os.path.basename(path).rpartition('-')[0] in _AVERAGED_NAMES
  return AVERAGED if is_export and contents.slots(SLOT) else RAW


def put_back(
  checkpoint: tf.train.Checkpoint, path: str, contents: contents_lib.Contents, optimizer_is_read: bool
) -> None:
  """Ends a restore: afterwards the model has the raw weights, and the optimizer the averages, if it keeps any.

  Args:
    checkpoint: the object that was restored.
    path: of the checkpoint that it was restored from.
    contents: the contents of that.
    optimizer_is_read: whether the optimizer was restored too; an evaluation reads only a part of it.

  Raises:
    UserError: averages must be evaluated, and the checkpoint lacks those of some or all weights.
  """
  ema = ema_optimizer.find(getattr(checkpoint, 'optimizer', None))
  if ema is None:
    return
  if not optimizer_is_read:
    _read_averages(ema, checkpoint, path, contents)
  if held(path, contents) == AVERAGED:
    ema.is_swapped = True
    ema.swap_weights()


def _read_averages(ema, checkpoint, path, contents):
  slots, missing = contents.slots(SLOT), {id(average) for average in ema.averages.values()}
  places = contents.match(checkpoint).places
  for place in places.values():
    average = ema.averages.get(id(place.variable))
    if average is not None and place.key in slots:
      average.assign(contents.value(slots[place.key]))
      missing.discard(id(average))
  if missing:
    raise errors.UserError(
      f'{path}: {"it holds no moving averages" if not slots else f"{len(missing)} moving averages are not in it"}; '
      '--set=trainer.optimizer_config.ema=null takes the weights themselves'
    )
  counter = next((place for name, place in places.items() if place.variable is ema.iterations), None)
  if counter is not None:
    counter.variable.assign(contents.value(counter.key))
