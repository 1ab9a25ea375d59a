"""The messages of a launcher and its workers."""

import os

from official_ext.base import launcher


def test_a_worker_owes_signs_from_its_first_until_it_leaves(monkeypatch):
  listener = launcher.Listener()
  for name, value in launcher.worker_environment(listener.signs).items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(os, 'getppid', os.getpid)  # This process is its own launcher.
  monkeypatch.setattr(launcher.faulthandler, 'register', lambda *_, **__: None)
  assert launcher.own_launcher()['pid'] == os.getpid() and 'signs_of_life' not in launcher.own_launcher()
  signs = launcher.SignsOfLife()
  heard = []

  def listen():
    listener.listen(0.5)
    heard.append(listener.silent_seconds)

  listen(), listen()
  signs.give(), signs.give()
  listen(), listen(), listen()
  signs.give()
  listen(), listen()
  signs.leave()
  listen(), listen()
  assert heard == [0, 0, 0, 0.5, 1, 0, 0.5, 0, 0]
  for _ in range(100_000):  # Nobody reads them: it is never waited for.
    signs.give()
  os.close(listener.signs)
  listener.close()
  signs.give()  # Nobody listens any more.


def test_without_a_launcher_signs_go_nowhere(monkeypatch):
  monkeypatch.delenv('OFFICIAL_EXT_LAUNCHER', raising=False)
  assert launcher.own_launcher() is None
  signs = launcher.SignsOfLife()
  signs.give()
  signs.leave()
