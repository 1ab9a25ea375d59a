"""Manifests of JobSet checked by published models: a program for an environment that has the package.

    .venv-manifests/bin/python tests/operations/engines/published.py < MANIFESTS

reads a JSON list of YAML texts, and prints a list: the mistakes of each. This project is not imported. The package of
published.txt has the models that Kubeflow's trainer generates from the OpenAPI of JobSet and Kubernetes.
"""

from collections.abc import Iterator
import importlib
import json
import sys
from typing import Any

import yaml


def _jobset(values: Any) -> Iterator[str]:
  models = importlib.import_module('kubeflow_trainer_api.models')
  validation = importlib.import_module('pydantic')
  try:
    found = models.JobsetV1alpha2JobSet.from_dict(values).to_dict()
  except validation.ValidationError as error:
    yield str(error)
    return
  yield from _lost(values, found, '')  # The models ignore unknown fields.


def _lost(given: Any, found: Any, path: str) -> Iterator[str]:
  """The values that are missing among others, or differ there."""
  if isinstance(given, dict) and isinstance(found, dict):
    for name, value in given.items():
      if name in found:
        yield from _lost(value, found[name], f'{path}.{name}')
      else:
        yield f'{path}.{name}: is not known'
  elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
    for place, values in enumerate(zip(given, found)):
      yield from _lost(*values, f'{path}.{place}')
  elif given != found and str(given) != found:  # Integers of 64 bits are texts in JSON.
    yield f'{path}: {given!r} is read as {found!r}'


def main() -> None:
  """Prints the mistakes of the manifests that it reads."""
  print(json.dumps([list(_jobset(yaml.safe_load(text))) for text in json.load(sys.stdin)]))


if __name__ == '__main__':
  main()
