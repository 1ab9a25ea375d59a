"""The signals that ask a process to stop."""

import signal


def signals() -> tuple[signal.Signals, ...]:
  """The signals that ask a process to stop: SIGTERM, SIGINT, and SIGHUP unless it is ignored, as under nohup."""
  is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  return (signal.SIGTERM, signal.SIGINT, *(() if is_ignored else (signal.SIGHUP,)))
