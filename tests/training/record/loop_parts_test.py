"""Tests of profiling.py."""

from official_ext.training.record import profiling

Part = profiling.Part


def test_first_runs_of_programs_are_parts_by_themselves():
  run = set()
  # Two programs of 4, three steps one by one.
  assert list(profiling.cut(0, 11, 4, run)) == [Part(4, compiles=True), Part(4), Part(1, compiles=True), Part(2)]
  assert run == {4, 1}
  assert list(profiling.cut(11, 11, 4, run)) == [Part(11)]


def test_programs_asked_for_are_parts_by_themselves():
  parts = list(profiling.cut(8, 11, 4, {1, 4}, lambda step, num_steps: step in (12, 17)))
  assert parts == [Part(4), Part(4, alone=True), Part(1), Part(1, alone=True), Part(1)]


def test_cuts_do_not_change_which_programs_run():
  """A part is run as a loop: as many whole programs as it holds, and then single steps."""
  for num_steps in range(1, 14):
    parts = list(profiling.cut(5, num_steps, 4, set(), lambda step, num_steps: step % 3 == 0))
    programs = [program for part in parts for program in [4] * (part.steps // 4) + [1] * (part.steps % 4)]
    assert programs == [4] * (num_steps // 4) + [1] * (num_steps % 4)


def test_a_program_for_any_number_of_steps_compiles_for_one():
  run = set()
  assert list(profiling.cut(0, 11, 4, run, any_number=True)) == [Part(1, compiles=True), Part(10)]
  assert list(profiling.cut(11, 11, 4, run, any_number=True)) == [Part(11)]
  is_alone = lambda step, num_steps: step <= 30 < step + num_steps
  parts = [Part(8), Part(3, alone=True)]  # The rest of a loop is a separate program.
  assert list(profiling.cut(22, 11, 4, run, is_alone, any_number=True)) == parts
