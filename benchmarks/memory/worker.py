"""The process of one measurement: `python -m benchmarks.memory.worker SUBJECT ours|torch VARIANT [--batch_size=N]`.

By hand: echo '{"amount": 1}' | python -m benchmarks.memory.worker decoder ours plain
"""

import argparse
from collections.abc import Mapping
import dataclasses
import importlib
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks.memory import process_memory
from benchmarks.memory import subjects
from benchmarks.memory import xla_plan
from benchmarks.peers import protocol
from benchmarks.peers.work import decoder
from benchmarks.peers.work import training

MODULES = {'ours': 'ours', 'torch': 'plain_torch'}


def work_of(subject: subjects.Subject, batch_size: int) -> training.Work | None:
  """The work of a decoder, on so many rows; None for ResNet-50."""
  if not subject.layers:
    return None
  work = decoder.decoder(subject.layers)
  enough = lambda rows: np.resize(rows, [batch_size, rows.shape[1]])
  return dataclasses.replace(work, inputs=enough(work.inputs), labels=enough(work.labels), batch_size=batch_size)


def measurement(
  subject: subjects.Subject, library: str, variant: str, batch_size: int, dump: pathlib.Path
) -> protocol.Measurement:
  """Loops of steps, and their memory.

  Args:
    subject: of the training.
    library: 'ours' or 'torch'.
    variant: in which way.
    batch_size: examples of an update.
    dump: where XLA writes its plans.
  """
  work = work_of(subject, batch_size)
  module = importlib.import_module(f'benchmarks.memory.{MODULES[library]}')
  base = process_memory.resident()
  loop, parameters, note = module.trainer(subject, variant, work, batch_size)
  loop()  # Compiles.
  start_peak = process_memory.peak()
  process_memory.forget_peak()
  plan = xla_plan.largest(dump) if note().startswith('fused') else None  # Of other executions, it is a part's.
  planned = {f'plan_{name}': value for name, value in dataclasses.asdict(plan).items()} if plan else {}

  def run(num_loops: int) -> Mapping[str, float]:
    start = time.perf_counter()
    for _ in range(num_loops):
      loop()
    return {
      'seconds_a_step': (time.perf_counter() - start) / (num_loops * subject.steps_per_loop),
      'base': base,
      'start': start_peak - base,
      'steps': process_memory.peak() - base,
      **planned,
    }

  return protocol.Measurement(run, parameters=parameters, note=note)


def main() -> None:
  """Builds the training, takes the steps that compile it, and serves."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('subject', choices=subjects.SUBJECTS)
  parser.add_argument('library', choices=MODULES)
  parser.add_argument('variant', choices=subjects.VARIANTS)
  parser.add_argument('--batch_size', type=int, default=0, help="examples of an update; 0 for the subject's own")
  arguments = parser.parse_args()
  subject = subjects.SUBJECTS[arguments.subject]
  os.environ.update({'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_USE_LEGACY_KERAS': '1', 'CUDA_VISIBLE_DEVICES': ''})
  with tempfile.TemporaryDirectory(prefix='official_ext-plan-') as dump, protocol.answers() as stream:
    flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_dump_to={dump} --xla_dump_hlo_as_text'
    os.environ['XLA_FLAGS'] = flags.strip()
    made = measurement(
      subject, arguments.library, arguments.variant, arguments.batch_size or subject.batch_size, pathlib.Path(dump)
    )
    protocol.serve(made, sys.stdin, stream, {})
  sys.stdout.flush()
  os._exit(0)  # Threads of prefetching would hold up the exit, and there is nothing to save.


if __name__ == '__main__':
  main()
