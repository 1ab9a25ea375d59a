"""Manifests checked by the packages of the engines' makers: a program for an environment that has their packages.

    .venv-manifests/bin/python tests/operations/engines/published.py ENGINE < MANIFESTS

reads a JSON list of YAML texts, and prints one of lists: the mistakes of each. This project is not imported.
The packages are those of published.txt: the models of JobSet that Kubeflow's trainer generates from the OpenAPI of
JobSet and Kubernetes, the messages of Vertex AI's client, and SkyPilot's own schemas.
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


def _vertex(values: Any) -> Iterator[str]:
  message = importlib.import_module('google.cloud.aiplatform_v1.types.custom_job').CustomJobSpec
  json_format = importlib.import_module('google.protobuf.json_format')
  try:
    found = json_format.ParseDict(values, message.pb(message()))
  except json_format.ParseError as error:
    yield str(error)
    return
  yield from _lost(values, json_format.MessageToDict(found), '')


def _skypilot(values: Any) -> Iterator[str]:
  schemas = importlib.import_module('sky.utils.schemas')
  validator = importlib.import_module('sky.utils.validator').get_schema_validator()
  schemas._allow_additional_properties = lambda: False  # As on a server whose plugins are loaded.
  parts = [(schemas.get_task_schema(), values), (schemas.get_resources_schema(), values.get('resources', {}))]
  for schema, part in parts:
    yield from (f'{"/".join(map(str, error.path))}: {error.message}' for error in validator(schema).iter_errors(part))


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


def main(engine: str) -> None:
  """Prints the mistakes of the manifests that it reads."""
  mistakes = {'jobset': _jobset, 'vertex': _vertex, 'skypilot': _skypilot}[engine]
  print(json.dumps([list(mistakes(yaml.safe_load(text))) for text in json.load(sys.stdin)]))


if __name__ == '__main__':
  main(sys.argv[1])
