"""Consoles for tests."""

import pytest

from tests import driver_processes
from tests.operations.console import servers


@pytest.fixture(scope='session')
def driver(train_server):
  """The process with the driver's answers: `start_console(folder, driver=driver)`. It starts when it is first asked."""
  with driver_processes.ForkedDriver(train_server()) as made:
    yield made


@pytest.fixture(scope='module', autouse=True)
def cache(tmp_path_factory):
  """The cache of runs is in a folder of the module's own."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    yield


@pytest.fixture(scope='module')
def start_console():
  """`start_console(folder, **values)` serves a folder until the end of the module: see servers.Console."""
  started = []

  def start(root, **values):
    started.append(servers.Console(root, **values))
    return started[-1]

  yield start
  for each in started:
    each.close()
