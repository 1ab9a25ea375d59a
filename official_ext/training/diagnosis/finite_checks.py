"""Finds the operation that makes the numbers of a step that are not finite."""

from collections.abc import Callable, Sequence

from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import op_trace

_REMEDIES = {
  'Log': 'use tf.math.xlogy or a loss that takes logits, or add a small number to the argument of the logarithm',
  'RealDiv': 'use tf.math.divide_no_nan, or add a small number to the divisor',
  'Sqrt': 'add a small number under the root: its gradient at 0 is infinite',
  'Pow': 'add a small number to the base: the gradient of a root at 0 is infinite',
  'Exp': 'subtract the maximum first, as tf.reduce_logsumexp does',
}
_SAME = {
  'Log1p': 'Log',
  'Xdivy': 'RealDiv',
  'Reciprocal': 'RealDiv',
  'Rsqrt': 'Sqrt',
  'SqrtGrad': 'Sqrt',
  'RsqrtGrad': 'Sqrt',
}
_PROBABILITIES = {'Softmax': 'tf.nn.log_softmax', 'Sigmoid': 'tf.math.log_sigmoid'}


def origin(run: Callable[[], Sequence[object]], what: str, otherwise: str) -> findings.Finding:
  """The finding about a step that is not finite.

  Args:
    run: runs the step again, and returns its tensors that are not finite.
    what: the name of the value that is not finite.
    otherwise: the place to name if no line of code is known.
  """
  trace = op_trace.OpTrace()
  with trace.recording():
    tensors = run()
  origins = trace.origins(tensors)
  if not origins:
    return findings.Finding('error', otherwise, f'{what} is not finite', '--debug looks for the operation')
  first = origins[0]
  kinds = [first.gradient_of, first.type]
  remedy = next(
    (_REMEDIES[_SAME.get(kind, kind)] for kind in kinds if _SAME.get(kind, kind) in _REMEDIES),
    '--debug shows its inputs',
  )
  return findings.Finding(
    'error',
    first.place or otherwise,
    f'{what} is not finite: the first operation to give such a number is {first}',
    remedy,
  )


def logarithms(trace: op_trace.OpTrace, is_users: Callable[[str], bool]) -> list[findings.Finding]:
  """Finds logarithms of the results of a softmax or a sigmoid: 0 becomes minus infinity.

  Args:
    trace: of a step.
    is_users: whether a file is the user's.
  """
  found = []
  for operation in trace.operations:
    maker = operation.made_from[0] if operation.type == 'Log' and operation.made_from else ''
    if maker in _PROBABILITIES and is_users(operation.source.partition(': ')[0].rpartition(':')[0]):
      found.append(
        findings.Finding(
          'warning',
          operation.place,
          f'this is the logarithm of a {maker.lower()}: -inf if a probability is 0',
          f'use {_PROBABILITIES[maker]}, or a loss that takes logits',
        )
      )
  return list(dict.fromkeys(found))
