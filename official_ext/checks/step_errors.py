"""What an error that a step raises says about the task's code."""

import re
from typing import Any, Optional, Sequence

import tensorflow as tf

from official_ext.checks import findings
from official_ext.core import failures
from official_ext.data import bad_examples
from official_ext.data import diagnosis

_DTYPES = re.compile(
    r'that does not match type|not in the list of allowed values|was expected to be an? \S+ tensor but is|'
    r'has DataType \S+ not in|Invalid dtype|must be of the same type|[Ee]xpected \S+, but got \S+ of type', re.DOTALL)
_HOST = re.compile(
    r"has no attribute 'numpy'|numpy\(\) is only available|NumPy call|to a numpy array|symbolic tf.Tensor")


def explain(error: BaseException, path: str = '', batches: Sequence[Any] = ()) -> Optional[findings.Finding]:
  """What an error of a step says about the task's code; None where it is none of the mistakes that are known here.

  Args:
    error: the exception.
    path: of the data configuration that the batch came from; '' where that is not known.
    batches: that can be meant.
  """
  of_data = of_label(error, path, batches)
  if of_data is not None:
    return of_data
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


def of_label(error: BaseException, path: str, batches: Sequence[Any]) -> Optional[findings.Finding]:
  """The finding about a label or an index that is out of range; None where the error says something else."""
  found = diagnosis.out_of_range(error)
  if found is None:
    return None
  names = [name for batch in batches for name, tensor in zip(bad_examples.paths(batch), tf.nest.flatten(batch))
           if isinstance(tensor, tf.Tensor) and tensor.dtype.is_integer and (tensor.numpy() == found.value).any()]
  what = f'{names[0]} is {found.value}' if len(set(names)) == 1 else f'a label or an index is {found.value}'
  place = failures.place_of(error)
  return findings.Finding(
      'error', path or 'task', f'{what}, outside of {found.valid}' + (f' ({place})' if place else ''),
      'count from 0, give the model as many classes (or rows) as there are, and mask what the loss is to leave out')


def _place_of(error: BaseException) -> str:
  """The last line of the user's code that an error comes from."""
  place = failures.place_of(error)
  return failures.at_line(*place) if place else 'task'
