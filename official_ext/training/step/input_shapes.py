"""Notes which shapes the inputs of a compiled step have: XLA compiles once for each."""

from collections.abc import Sequence

from absl import logging
import tensorflow as tf

_MAX_NAMED = 8


class InputShapes:
  """Counts the programs to which a step is compiled, and warns if there are many."""

  def __init__(self, strategy: tf.distribute.Strategy):
    """Initializes it; nothing is counted before `start`."""
    self._strategy = strategy
    self._seen: tf.lookup.experimental.MutableHashTable | None = None
    self.num_compilations = 1

  def start(self) -> None:
    """Starts to count. A step whose shapes are fixed does not need it."""
    with self._strategy.scope():
      self._seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

  def note(self, micro_batches: Sequence[object]) -> None:
    """Remembers the shapes of a step's inputs. Cross-replica context, in a graph or outside."""
    if self._seen is None:
      return
    for inputs in micro_batches:
      local = tf.nest.map_structure(lambda x: self._strategy.experimental_local_results(x)[0], inputs)
      shapes = [
        tf.strings.join(['(', tf.strings.reduce_join(tf.strings.as_string(tf.shape(t)), separator=', '), ')'])
        for t in tf.nest.flatten(local, expand_composites=True)
      ]
      self._seen.insert(tf.strings.reduce_join(shapes, separator=' '), tf.constant(1, tf.int64))

  def count(self, max_silent_recompilations: int) -> None:
    """Counts again, and warns if the step was compiled again, and too often."""
    shapes = self._shapes()
    before, self.num_compilations = self.num_compilations, max(1, len(shapes))
    if self.num_compilations > max(before, max_silent_recompilations):
      varying = ', '.join(shapes[:_MAX_NAMED])
      logging.warning(
        'The training step was compiled %d times, because the shapes of its inputs vary: %s. Pad them to one shape '
        '(drop_remainder, padded_batch), or set runtime.enable_xla=false.',
        self.num_compilations,
        varying,
      )

  def _shapes(self) -> list[str]:
    """The shapes seen so far, one string for each combination."""
    return [] if self._seen is None else sorted(key.decode() for key in self._seen.export()[0].numpy())
