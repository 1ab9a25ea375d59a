"""The protocol of a measurement's process: one JSON object a line.

    it            {"ready": {...}}                            once it has built everything; nothing is timed before
    the other     {"amount": 500}                             as often as it likes
    it            {"seconds": 0.61, "work_seconds": 1.1, "amount": 500, "values": {"loss": 0.3}}
    the other     {"loss": "now"}                             what the loss is after what was done
    it            {"loss": 0.2}
    the other     closes

Libraries may print anything: their standard output goes to standard error, and only this module has the real one.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import json
import os
import resource
import sys
import time
from typing import Any, TextIO

_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # The second: children that have ended.


@dataclasses.dataclass(frozen=True)
class Measurement:
  """A runner that has built everything.

  Attributes:
    run: does an amount of the work (steps, examples, tokens, ...) and returns named numbers, once they are computed:
      the device has nothing left to do. A value named `seconds` replaces the time of the call, for a runner that
      prepares something at each call.
    multiple: amounts are multiples of it, such as the length of a loop.
    parameters: how many numbers are trained; None if nothing is.
    loss: of `Work.check_batch` at the weights of the moment, without dropout; None if the work has none.
    note: how the work is run, for people; called at the end.
    is_reduced: whether it computes in fewer bits, so that losses agree less closely.
    close: ends the work of `run`.
  """

  run: Callable[[int], Mapping[str, float]]
  multiple: int = 1
  parameters: int | None = None
  loss: Callable[[], float] | None = None
  note: Callable[[], str] = lambda: ''
  is_reduced: bool = False
  close: Callable[[], None] = lambda: None


@contextlib.contextmanager
def answers() -> Iterator[TextIO]:
  """The stream for answers; output inside goes to standard error."""
  sys.stdout.flush()
  with os.fdopen(os.dup(1), 'w', buffering=1) as stream:
    os.dup2(2, 1)
    yield stream


def serve(measurement: Measurement, requests: TextIO, stream: TextIO, versions: Mapping[str, str]) -> None:
  """Answers until the requests end.

  Args:
    measurement: the one to serve.
    requests: a line for each.
    stream: of `answers`.
    versions: of the libraries in use.
  """
  ready = {
    'multiple': measurement.multiple,
    'parameters': measurement.parameters,
    'first_loss': _loss(measurement),
    'is_reduced': measurement.is_reduced,
    'versions': dict(versions),
  }
  _send(stream, {'ready': ready})
  try:
    for line in requests:
      request = json.loads(line)
      asks_loss = 'loss' in request
      _send(stream, {'loss': _loss(measurement)} if asks_loss else _answer(measurement, request['amount']))
  finally:
    measurement.close()


def _loss(measurement: Measurement) -> float | None:
  return None if measurement.loss is None else float(measurement.loss())


def _answer(measurement: Measurement, amount: int) -> dict[str, Any]:
  start, start_of_work = time.perf_counter(), _work_seconds()
  values = {name: float(value) for name, value in measurement.run(amount).items()}
  seconds, work_seconds = time.perf_counter() - start, _work_seconds() - start_of_work
  return {
    'amount': amount,
    'seconds': values.pop('seconds', seconds),
    'work_seconds': work_seconds,
    'values': values,
    'note': measurement.note(),
    'peak_bytes': 1024 * max(resource.getrusage(who).ru_maxrss for who in _PROCESSES),
  }


def _work_seconds() -> float:
  """Seconds that processors have worked for this process and for those of its children that have ended."""
  used = [resource.getrusage(who) for who in _PROCESSES]
  return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _send(stream: TextIO, message: Mapping[str, Any]) -> None:
  stream.write(json.dumps(message) + '\n')
  stream.flush()
