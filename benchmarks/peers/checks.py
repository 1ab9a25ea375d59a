"""Whether two processes do the same work: as many parameters, the same loss at the first weights and later."""

from collections.abc import Mapping
from typing import Any

TOLERANCE = 1e-3  # Of losses in float32, of different orders of summation.
REDUCED_TOLERANCE = 2e-2  # Of losses in bfloat16, which has 8 bits of mantissa.
# Of losses after some steps. Adam's first steps go by the sign of each gradient, also of those that are but rounding:
# the losses of a decoder differ by a sixtieth after 20 steps, from 6.3 to 1.5.
LATER_TOLERANCE, REDUCED_LATER_TOLERANCE = 5e-2, 1e-1
FALL_TOLERANCE = 0.2  # Of how far the loss has fallen: adapters whose first weights each library draws differ by more.
Losses = tuple[float, float]  # At the first weights, and later.


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
  """The differences of a peer's work from ours; values that only one of them reports are not compared.

  Args:
    ours: the `ready` message of our process.
    theirs: that of the peer.
  """
  found = []
  pair = lambda name: (ours.get(name), theirs.get(name))
  parameters = pair('parameters')
  if None not in parameters and parameters[0] != parameters[1]:
    found.append(f'{parameters[1]:,} parameters, ours {parameters[0]:,}')
  losses = pair('first_loss')
  if None not in losses:
    tolerance = REDUCED_TOLERANCE if any(pair('is_reduced')) else TOLERANCE
    if not abs(losses[1] - losses[0]) <= tolerance * abs(losses[0]):  # NaN differs from everything.
      found.append(f'first loss {losses[1]:.5g}, ours {losses[0]:.5g}')
  return found


def differences_after(num_steps: int, ours: float, theirs: float, is_reduced: bool) -> list[str]:
  """In the loss after as many steps on the same batches: of gradients, optimizers or clipping.

  Args:
    num_steps: that both have done.
    ours: our loss of the check batch after them.
    theirs: the peer's.
    is_reduced: whether one of them computes in fewer bits.
  """
  tolerance = REDUCED_LATER_TOLERANCE if is_reduced else LATER_TOLERANCE
  if abs(theirs - ours) <= tolerance * abs(ours):
    return []
  return [f'loss after {num_steps} steps {theirs:.5g}, ours {ours:.5g}']


def differences_of_falls(num_steps: int, ours: Losses, theirs: Losses, is_reduced: bool) -> list[str]:
  """In how far the loss has fallen: after few steps, that of a peer without most gradients is still close to ours.

  Args:
    num_steps: that both have done.
    ours: our losses of the check batch.
    theirs: the peer's.
    is_reduced: whether one of them computes in fewer bits.
  """
  falls = [first - later for first, later in (ours, theirs)]
  rounding = (REDUCED_TOLERANCE if is_reduced else TOLERANCE) * abs(ours[0])
  if abs(falls[1] - falls[0]) <= FALL_TOLERANCE * abs(falls[0]) + rounding:  # NaN differs from everything.
    return []
  return [f'loss {theirs[0]:.5g} to {theirs[1]:.5g} in {num_steps} steps, ours {ours[0]:.5g} to {ours[1]:.5g}']
