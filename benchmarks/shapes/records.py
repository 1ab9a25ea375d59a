"""The measurements, in a file: for each experiment the rule's input, and the time of a step in each execution."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

RULE = 'rule'
Record = Mapping[str, Any]


def read(path: pathlib.Path) -> dict[str, Record]:
  """Name of an experiment -> its record; {} if there is no file.

  A record has `traits` and `arguments`, those of `step_plan.choose_plan`; `plan`, its result; `milliseconds`:
  execution -> the median of a step over the turns, and `range`: execution -> [least, most].
  """
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}


def write(path: pathlib.Path, records: Mapping[str, Record]) -> None:
  """Writes all records, sorted by their names."""
  path.write_text(json.dumps(dict(sorted(records.items())), indent=1) + '\n', encoding='utf-8')


def loss(record: Record) -> float:
  """How much longer a step of the rule's takes than one of the fastest execution: 0.1 for 10 %."""
  times = record['milliseconds']
  return times[RULE] / min(times.values()) - 1


def table(records: Mapping[str, Record]) -> list[str]:
  """The records as a table in Markdown: milliseconds of a step."""
  names = list(dict.fromkeys(name for record in records.values() for name in record['milliseconds']))
  lines = [f'| experiment | {" | ".join(names)} | slower than the fastest by | the rule says |']
  lines.append(f'|{"---|" * (len(names) + 3)}')
  for experiment, record in records.items():
    times = [f'{record["milliseconds"][name]:.3g}' if name in record['milliseconds'] else '' for name in names]
    lines.append(f'| {experiment} | {" | ".join(times)} | {loss(record):.0%} | {record["plan"]} |')
  return lines
