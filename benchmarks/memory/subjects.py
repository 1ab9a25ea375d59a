"""The subjects of training, and their variants. Imports no framework."""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class Subject:
  """A training.

  Attributes:
    name: on the command line.
    title: in tables.
    batch_size: examples of an update.
    variants: the ways in which it is done.
    steps_per_loop: of the trainer; PyTorch takes as many between two looks at the clock.
    layers: of a decoder; 0 for ResNet-50.
  """

  name: str
  title: str
  batch_size: int
  variants: tuple[str, ...]
  steps_per_loop: int
  layers: int = 0


# The effect of each; 'plain' has default settings.
VARIANTS: Mapping[str, str] = {
  'plain': 'as it comes',
  'xla': 'one program of XLA, where the rule picks another execution',
  'remat': 'blocks are computed once more for the gradient',
  'scan': 'one block in a loop over stacked weights, computed once more',
  'accumulation': 'four batches of a quarter for one update',
}
IN_PYTORCH = ('plain', 'remat', 'accumulation')
MICRO_BATCHES = 4  # Of 'accumulation'.

_OF_DECODERS = ('plain', 'xla', 'remat', 'scan', 'accumulation')

SUBJECTS: Mapping[str, Subject] = {
  subject.name: subject
  for subject in (
    Subject('decoder', 'decoder of 4 layers of 256, 16 rows of 128 tokens', 16, _OF_DECODERS, 2, layers=4),
    Subject('decoder_24_layers', 'the same with 24 layers', 16, _OF_DECODERS, 2, layers=24),
    Subject('resnet50', "Model Garden's ResNet-50, 8 images of 224x224", 8, IN_PYTORCH, 2),
  )
}
IMAGE_SIZE, NUM_CLASSES = 224, 1000
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def split(variant: str, batch_size: int) -> tuple[int, int]:
  """(examples of a micro-batch, micro-batches of an update)."""
  if variant != 'accumulation':
    return batch_size, 1
  return batch_size // MICRO_BATCHES, MICRO_BATCHES
