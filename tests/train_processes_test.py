"""Processes that tests start from one that has TensorFlow imported."""

from tests import train_processes


def test_a_number_that_the_system_gives_again_is_another_process(train_server):
  server = train_server()
  number = 2**22 + 1  # No process has it: the largest is 2**22.
  server._note({'pid': number})
  first = train_processes.ForkedProcess(server, server._started)
  server._note({'pid': number, 'status': -9})
  server._note({'pid': number})
  second = train_processes.ForkedProcess(server, server._started)
  assert (first.poll(), second.poll()) == (-9, None)
  server._note({'pid': number, 'status': 0})
  assert (first.poll(), second.poll()) == (-9, 0)


def test_a_process_with_a_pipe_has_its_status(start_train):
  process = start_train(['--no_such_flag'])
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 2 and 'no_such_flag' in output
