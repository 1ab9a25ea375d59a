"""Alerts people about runs and jobs, once for each incident, also for earlier ones. No TensorFlow.

A thread of the dispatcher looks at the files of runs and jobs, and writes new incidents (alert_files.py). It sends
nothing itself: for each receiver a separate process does (alert_sender.py), which outlives the dispatcher and keeps
nobody waiting.
"""

from collections.abc import Callable, Mapping
import json
import subprocess
import sys
import threading
import time

from official_ext.base import errors
from official_ext.base.files import moments
from official_ext.base.run_folder import liveness
from official_ext.operations.queue import alert_files
from official_ext.operations.queue import alert_rules
from official_ext.operations.queue import alert_sender
from official_ext.operations.queue import event_watch
from official_ext.operations.queue import incidents
from official_ext.operations.queue import queue_folder
from official_ext.operations.runs import index
from official_ext.operations.runs import run_folder

_POLL_SECONDS = 2.0
_SHARE = 0.02  # Of a core, that looking may cost.
_END_SECONDS = 30.0  # How long the end waits for messages that are on their way.
_JOIN_SECONDS = 10.0
_AGAIN_SECONDS = 10.0  # After a sender has ended while something was due.
_WATCHED_SECONDS = 30.0
_CLOCKS_DIFFER_SECONDS = 86400.0  # The clock of another host is less than this behind.


class Alerts:
  """Watches a folder of runs and its queue for a dispatcher."""

  def __init__(
    self,
    queue: queue_folder.Queue,
    rules: alert_rules.AlertRules,
    receivers: Mapping[str, str],
    poll_seconds: float = _POLL_SECONDS,
    delays: tuple[float, ...] = alert_sender.DELAYS,
  ):
    """Looks at nothing yet.

    Args:
      queue: the queue; its dispatcher's lock must be held while this works.
      rules: the conditions.
      receivers: URLs, in apprise's notation, by the names by which they may be called: a URL holds secrets.
      poll_seconds: how often it looks; less often in folders in which looking takes long.
      delays: see alert_sender.Sender.
    """
    self._queue = queue_folder.Queue(queue.runs_dir)  # Of this thread's own.
    self._files = alert_files.AlertFiles(queue.folder)
    self._index = index.RunIndex(queue.runs_dir)
    self._rules = rules
    self._receivers = dict(receivers)
    self._poll_seconds = poll_seconds
    self._delays = delays
    self._known: set[str] = set()
    self._pending: dict[str, set[str]] = {name: set() for name in receivers}
    self._senders: dict[str, tuple[subprocess.Popen, float]] = {}
    self._complained: set[str] = set()
    self._trouble = ''
    self._watch = event_watch.EventWatch({}, True)
    self._incidents = incidents.Incidents(rules, self._watch)
    self._watched_at = 0.0
    self._is_ready = False
    self._has_rules = False
    self._stop = threading.Event()
    self._thread: threading.Thread | None = None
    self._say: Callable[[str], None] = print

  def start(self, say: Callable[[str], None]) -> None:
    """Begins to watch, in a thread. Incidents from now on will be reported, also if this process is killed.

    Args:
      say: prints a line for people.
    """
    self._say = say
    self._look()
    self._thread = threading.Thread(target=self._run, name='alerts', daemon=True)
    self._thread.start()

  def close(self) -> bool:
    """Ends the watching. Messages in progress are sent; the rest is sent by the next dispatcher.

    Returns:
      Whether the thread has ended; if not, it hangs with its disk, and may still use this object.
    """
    self._stop.set()
    if self._thread is not None:
      self._thread.join(_JOIN_SECONDS)
    return self._thread is None or not self._thread.is_alive()

  def finish(self, seconds: float = _END_SECONDS) -> None:
    """Reports the incidents until now, and waits at most so long until they are sent."""
    if not self.close():
      return
    deadline = time.monotonic() + seconds
    self._look()
    while self._incidents.is_waiting and time.monotonic() < deadline:
      time.sleep(0.1)
      self._look()
    while any(self._pending.values()) and time.monotonic() < deadline:
      time.sleep(0.05)
      self._send()

  def _run(self) -> None:
    while not self._stop.is_set():
      begun = time.monotonic()
      self._look()
      self._stop.wait(max(self._poll_seconds, (time.monotonic() - begun) / _SHARE))

  def _look(self) -> None:
    """Looks once, and has new incidents sent."""
    try:
      if not self._is_ready:
        self._load()
      states = self._queue.states()
      runs = [summary for summary in self._index.summaries(self._rules.hung_seconds) if not summary.is_archived]
      if not self._has_rules:
        self._learn_rules(runs, states)
      for incident in self._incidents.find(runs, states, self._known.__contains__):
        if incident.rule != alert_rules.QUEUE_EMPTY or not self._queue.expects_more():
          self._add(incident)
      self._save_watched({summary.path for summary in runs})
      self._send()
      self._trouble = ''
    except (OSError, errors.StorageError, errors.UserError) as error:  # The files have it all the next time.
      if str(error) != self._trouble:
        self._say(f'alerts: {error}')
      self._trouble = str(error)

  def _load(self) -> None:
    """Reads the earlier incidents and deliveries."""
    self._files.make()
    conditions = bool(self._rules.conditions)
    self._watch = event_watch.EventWatch(self._files.watched(), only_odd=not conditions)
    self._incidents = incidents.Incidents(self._rules, self._watch)
    for key in self._files.keys():
      self._known.add(key)
      self._expect(self._files.read(key))
    self._is_ready = True

  def _expect(self, alert: alert_files.Alert | None) -> None:
    if alert is None:
      return
    for name in alert.receivers:
      if name in self._pending and self._files.state(alert.key, name).get('state') not in alert_files.OVER:
        self._pending[name].add(alert.key)

  def _learn_rules(self, runs, states) -> None:
    """Incidents before a rule was first used are not reported."""
    before = {rule: self._files.known_before(rule) for rule in self._rules.texts}
    new = [rule for rule, known in before.items() if known is None]
    self._known.update(key for known in before.values() for key in known or ())
    if not new:
      self._has_rules = True
      return
    # The reader of events begins with those of runs that are not over.
    for summary in runs:
      run = run_folder.Run(summary.path, summary.name)
      if summary.status in incidents.NOT_OVER or summary.status == 'hung':
        self._watch.begin_anew(run)
      else:
        self._watch.skip(run)
    self._files.set_watched(self._watch.places)
    blind = incidents.Incidents(self._rules.without_events(), self._watch, grace_seconds=0.0, silence_seconds=0.0)
    found = [incident for incident in blind.find(runs, states, self._known.__contains__) if _is_past(incident)]
    for rule in new:
      keys = [incident.key for incident in found if incident.rule == rule]
      self._files.set_known_before(rule, keys)
      self._known.update(keys)
    self._has_rules = True

  def _add(self, incident: incidents.Incident) -> None:
    told = incidents.told_by_itself(incident.run, incident.rule) if incident.run else ()
    names = [name for name in self._receivers if name.partition('[')[0] not in told]
    alert = incident.alert(names)
    self._files.add(alert)
    self._known.add(incident.key)
    for name in names:
      self._pending[name].add(incident.key)

  def _save_watched(self, paths: set[str]) -> None:
    self._watch.keep_only(paths)
    if time.monotonic() > self._watched_at + _WATCHED_SECONDS:
      self._files.set_watched(self._watch.places)
      self._watched_at = time.monotonic()

  # Sending.

  def _send(self) -> None:
    """Lets senders work for those receivers for which something is due."""
    for name, keys in self._pending.items():
      for key in list(keys):
        state = self._files.state(key, name).get('state')
        if state in alert_files.OVER:
          keys.remove(key)
          self._tell_of(key, name, state)
      if keys:
        self._start_sender(name)

  def _start_sender(self, name: str) -> None:
    process, not_before = self._senders.get(name, (None, 0.0))
    if (process is not None and process.poll() is None) or time.monotonic() < not_before:
      return
    again = _AGAIN_SECONDS if process is not None and process.returncode else 0.2
    process = subprocess.Popen(
      [sys.executable, '-m', 'official_ext.operations.queue.alert_sender', self._files.folder, name],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    assert process.stdin is not None
    with process.stdin as stdin:
      stdin.write(json.dumps({'url': self._receivers[name], 'delays': self._delays}).encode())
    self._senders[name] = (process, time.monotonic() + again)

  def _tell_of(self, key: str, name: str, state: str) -> None:
    """Prints that an alert was not sent; once, until one is sent again."""
    if state == alert_files.SENT:
      self._complained.discard(name)
    elif name not in self._complained:
      self._complained.add(name)
      alert = self._files.read(key)
      how = 'was not taken by' if state == alert_files.FAILED else 'may not have reached'
      self._say(f'alerts: {(alert.title if alert else key)!r} {how} {name}')


def _is_past(incident: incidents.Incident) -> bool:
  """Whether the subject of an incident has ended.

  A run on another host that seems to have been killed may be alive, and the clock there behind. It counts as ended if
  its last heartbeat is older than clocks differ.
  """
  if not incident.is_over or incident.rule != 'killed' or incident.run is None:
    return incident.is_over
  record = incident.run.record() or {}
  beat = moments.seconds(record.get('heartbeat'))
  return not liveness.is_out_of_sight(record) or beat is None or time.time() - beat > _CLOCKS_DIFFER_SECONDS
