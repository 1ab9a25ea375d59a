"""A process that writes shards: jobs come as lines of JSON on stdin, answers go as lines of JSON to stdout,
the reports of `shards.write_or_report` before each of them.

It is started as a new process, not forked, and ends with its stdin: it does not outlive a starter that is killed.
"""

import json
import os
import queue
import signal
import sys
import threading

from official_ext.base import json_values
from official_ext.data.prepare import shards


def main() -> None:
  """Answers jobs until stdin ends."""
  for number in (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
  ):  # They reach the whole group; the first process decides.
    signal.signal(number, signal.SIG_IGN)
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)  # The output of a library must not be taken for an answer.
  jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
  threading.Thread(target=_listen, args=(jobs,), daemon=True).start()

  def put(answer: json_values.JsonObject) -> None:
    answers.write(json.dumps(answer) + '\n')
    answers.flush()

  while True:
    put(shards.write_or_report(json.loads(jobs.get()), put))


def _listen(jobs: 'queue.SimpleQueue[str]') -> None:
  for line in sys.stdin:
    jobs.put(line)
  os._exit(0)  # Also in the middle of a shard: no process waits for it.


if __name__ == '__main__':
  main()
