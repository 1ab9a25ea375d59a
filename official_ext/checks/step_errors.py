"""What an error that a step raises says about the task's code."""

import re
import traceback
from typing import Optional

import tensorflow as tf

from official_ext.checks import findings

_DTYPES = re.compile(
    r'that does not match type|not in the list of allowed values|was expected to be an? \S+ tensor but is|'
    r'has DataType \S+ not in|Invalid dtype|must be of the same type|[Ee]xpected \S+, but got \S+ of type', re.DOTALL)
_HOST = re.compile(
    r"has no attribute 'numpy'|numpy\(\) is only available|NumPy call|to a numpy array|symbolic tf.Tensor")
_FILE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def explain(error: BaseException) -> Optional[findings.Finding]:
  """What an error of a step says about the task's code; None where it is none of the mistakes that are known here."""
  message = ' '.join(str(error).split())
  if isinstance(error, (AttributeError, NotImplementedError, TypeError)) and _HOST.search(message):
    return findings.Finding(
        'error', _place_of(error), 'the value of a tensor is needed, which a compiled step has not '
        f'({type(error).__name__})', 'use TensorFlow\'s functions instead of NumPy\'s and of .numpy()')
  if isinstance(error, (TypeError, ValueError, tf.errors.InvalidArgumentError)) and _DTYPES.search(message):
    short = re.split(r'; NodeDef|\[Op:|\{\{', re.split(r'\w+Error: ', message)[-1])[0].strip(' .;')[:200]
    return findings.Finding(
        'error', _place_of(error), f'dtypes do not fit: {short}',
        'cast the labels in build_inputs (class numbers: int32, others: float32), or with tf.cast in the step')
  return None


def _place_of(error: BaseException) -> str:
  """The last line of the user's code that an error comes from."""
  frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
  frames += [(name, int(line), function) for name, line, function in _FILE.findall(str(error))]  # AutoGraph's.
  places = [findings.at_line(*frame) for frame in frames if findings.is_users(frame[0])]
  return places[-1] if places else 'task'
