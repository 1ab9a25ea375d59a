"""Processes that tests start from one that has TensorFlow imported."""


def test_a_number_that_the_system_gives_again_is_another_process(train_server):
  server = train_server()
  number = 2**22 + 1  # No process has it: the largest is 2**22.
  server._note({'pid': number})
  first = server._started
  server._note({'pid': number, 'status': -9})
  server._note({'pid': number})
  second = server._started
  assert (first.poll(), second.poll()) == (-9, None)
  server._note({'pid': number, 'status': 0})
  assert (first.poll(), second.poll()) == (-9, 0)
