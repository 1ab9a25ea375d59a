"""official-ext data_service: makes the batches of an experiment for runs on other machines."""

import argparse
from collections.abc import Iterator
import contextlib
import os
import signal
import socket
import time

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import processes
from official_ext.data.service import client
from official_ext.training.config import definitions
from official_ext.training.devices import signals
from official_ext.training.loop import training_input

_POLL_SECONDS = 0.2
_REPORT_SECONDS = 60.0
_FREE_SECONDS = 3.0
_ENDING = 'ending; runs make the batches themselves that do not come'


def check(own: argparse.Namespace) -> None:
  """Checks the addresses in the arguments of `official-ext data_service`.

  Raises:
    UserError: one is wrong, or taken.
  """
  if own.dispatcher_address:
    own.dispatcher_address = own.dispatcher_address.removeprefix('grpc://')
    client.check_address(f'grpc://{own.dispatcher_address}', '--dispatcher_address')
  for flag, port in (('--port', 0 if own.dispatcher_address else own.port), ('--worker_port', own.worker_port)):
    _check_free(flag, port)
  _check_host(own.host)


def run(own: argparse.Namespace, params: definitions.ExperimentConfig, experiment: str) -> None:
  """Serves until SIGTERM or SIGINT, which end the process with status 0.

  Args:
    own: the arguments, which `check` has passed.
    params: the experiment.
    experiment: its name.

  Raises:
    UserError: there is no input to serve, or a port is taken.
  """
  with contextlib.suppress(RuntimeError):  # TensorFlow has begun: there is nothing left to hide.
    tf.config.set_visible_devices([], 'GPU')
  inputs = training_input.build_served_inputs(params)
  with signals.PreemptionWatch(_ENDING) as watch:
    if own.dispatcher_address and not _wait_for(own.dispatcher_address, watch):
      return
  with _ended_by_signals():
    servers = training_input.start_data_servers(
      inputs, own.host or _own_name(), own.port, own.dispatcher_address, own.worker_port
    )
  with signals.PreemptionWatch(_ENDING) as watch:
    _print_start(servers, inputs, experiment)
    reported, reported_at = 0, time.monotonic()
    while watch.requested is None:
      time.sleep(_POLL_SECONDS)
      count = servers.answers.num_batches
      if count != reported and time.monotonic() - reported_at > _REPORT_SECONDS:
        print(f'made           {count} batches', flush=True)
        reported, reported_at = count, time.monotonic()
  print(f'made           {servers.answers.num_batches} batches', flush=True)
  # TensorFlow's servers keep Python's lock while they stop, and wait for requests, which need it.
  os._exit(0)  # pylint: disable=protected-access


def _check_free(flag: str, port: int) -> None:
  """Refuses a port at which another process listens: TensorFlow's servers would share it with others of their kind.

  One that was just killed may take a moment to be gone.
  """
  deadline = time.monotonic() + _FREE_SECONDS
  while port and _listens(port):
    if time.monotonic() > deadline:
      raise errors.UserError(f'{flag}: {port}: no server could be started: Address already in use')
    time.sleep(_POLL_SECONDS)


def _listens(port: int) -> bool:
  """Whether a process of this machine listens at a port."""
  try:
    with socket.create_connection(('localhost', port), 1.0) as found:
      return found.getsockname() != found.getpeername()  # Without a listener a port may be connected with itself.
  except OSError:
    return False


def _check_host(host: str) -> None:
  """Refuses an invalid name: TensorFlow would look for it without an end."""
  try:
    socket.getaddrinfo(host.strip('[]') or None, 0)
  except (OSError, UnicodeError) as error:
    raise errors.UserError(f'--host: {host!r} cannot be found; name this machine as others find it') from error


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
  """A context in which signals end the process at once: TensorFlow waits in it without letting Python run."""
  before = {number: signal.signal(number, signal.SIG_DFL) for number in processes.stop_signals()}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _wait_for(dispatcher: str, watch: signals.PreemptionWatch) -> bool:
  """Waits for a dispatcher, as TensorFlow does, which cannot be interrupted. Returns whether it exists."""
  print(f'connecting to  the dispatcher at {dispatcher}', flush=True)
  is_reported = False
  while watch.requested is None:
    with contextlib.suppress(OSError), socket.create_connection(client.host_and_port(dispatcher), 1.0):
      return True
    if not is_reported:
      print(f'waiting for    the dispatcher at {dispatcher}', flush=True)
      is_reported = True
    time.sleep(_POLL_SECONDS)
  return False


def _print_start(servers, inputs, experiment):
  print(f'worker         {servers.answers.name}')
  for served in inputs.values():
    print(f'makes          batches of {served.path}, which has {served.maker.num_examples:,} examples')
  print(f'dispatcher     {servers.address}')
  flag = f'--set={next(iter(inputs.values())).path}.enable_tf_data_service=true'
  print(f'runs need      --experiment={experiment} --tf_data_service={servers.address} {flag}', flush=True)


def _own_name() -> str:
  """The name by which other machines find this one, if it has one."""
  name = socket.gethostname()
  try:
    socket.getaddrinfo(name, None)
  except OSError:
    return 'localhost'
  return name
