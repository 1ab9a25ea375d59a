"""Explains which mistake in the task's code makes a step raise an error."""

import re

import tensorflow as tf

from official_ext.training.devices import failures
from official_ext.training.diagnosis import findings

_DTYPES = re.compile(
  r'that does not match type|not in the list of allowed values|was expected to be an? \S+ tensor but is|'
  r'has DataType \S+ not in|Invalid dtype|must be of the same type|[Ee]xpected \S+, but got \S+ of type',
  re.DOTALL,
)
_HOST = re.compile(
  r"has no attribute 'numpy'|numpy\(\) is only available|NumPy call|to a numpy array|symbolic tf.Tensor"
)


def explain(error: BaseException) -> findings.Finding | None:
  """The finding about the task's code that an error of a step means; None if the mistake is not known here."""
  message = ' '.join(str(error).split())
  if isinstance(error, (AttributeError, NotImplementedError, TypeError)) and _HOST.search(message):
    return findings.Finding(
      'error',
      _place_of(error),
      f'the value of a tensor is needed, which a compiled step has not ({type(error).__name__})',
      "use TensorFlow's functions instead of NumPy's and of .numpy()",
    )
  if isinstance(error, (TypeError, ValueError, tf.errors.InvalidArgumentError)) and _DTYPES.search(message):
    short = re.split(r'; NodeDef|\[Op:|\{\{', re.split(r'\w+Error: ', message)[-1])[0].strip(' .;')[:200]
    return findings.Finding(
      'error',
      _place_of(error),
      f'dtypes do not fit: {short}',
      'cast the labels in build_inputs (class numbers: int32, others: float32), or with tf.cast in the step',
    )
  return None


def _place_of(error: BaseException) -> str:
  """The last line of the user's code that an error comes from."""
  place = failures.place_of(error)
  return failures.at_line(*place) if place else 'task'
