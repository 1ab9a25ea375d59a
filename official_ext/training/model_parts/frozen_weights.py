"""Finds the frozen weights of a model, which no gradient reaches and checkpoints leave out.

A layer has some if its attribute `is_frozen` is true; its method `own_weights` returns them by attribute.
"""

from typing import Any

# Of the names of variables that hold the digest of frozen weights in their own name.
DIGEST_PREFIX = 'frozen_weights_sha256_'


def constants(model: Any) -> list[object]:
  """The variables of all frozen weights of a `tf.Module`."""
  frozen = [part for part in (model, *model.submodules) if getattr(part, 'is_frozen', False)]
  return [variable for part in frozen for variable in part.own_weights().values()]
