"""Tests of the manifests by the published models of JobSet, which `make manifests` installs."""

import json
import pathlib
import subprocess

import pytest

from tests.operations.engines import rendered

ROOT = pathlib.Path(__file__).resolve().parents[3]
_PYTHON = ROOT / '.venv-manifests/bin/python'
_ALL = ('--cpus=4', '--memory=8Gi', '--secret=keys', '--namespace=n', '--grace_seconds=30', '--max_restarts=7')
_WITHOUT = ('--nodes=1', '--gpus=0')
# A change that makes the manifest invalid, and the message of the models.
_WRONG = (
  ('spec.failurePolicy.maxRestart=3', 'maxRestart'),
  ('spec.failurePolicy.maxRestarts=often', 'maxRestarts'),
  ('spec.replicatedJobs.0.template.spec.template.spec.containers.0.imageUrl=a', 'imageUrl'),
  ('spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.onExitCodes.values=2', 'values'),
)


def _mistakes(texts):
  done = subprocess.run(
    [str(_PYTHON), str(ROOT / 'tests/operations/engines/published.py')],
    input=json.dumps(texts),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not _PYTHON.exists(), reason='no published models here: make manifests')
def test_manifests_are_what_jobset_publishes(capsys):
  right = [
    rendered.text(capsys, 'jobset', *words, '--env=A=$(B) 010', flags=rendered.ODD) for words in ((), _ALL, _WITHOUT)
  ]
  wrong = [rendered.text(capsys, 'jobset', f'--engine_arg={argument}', flags=()) for argument, _ in _WRONG]
  found = _mistakes([*right, *wrong])
  assert found[: len(right)] == [[]] * len(right)
  for (argument, expected), mistakes in zip(_WRONG, found[len(right) :], strict=True):
    assert len(mistakes) >= 1 and expected in mistakes[0], (argument, mistakes)
