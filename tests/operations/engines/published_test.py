"""Tests of the manifests by the packages of the engines' makers; `make manifests` installs that."""

import json
import pathlib
import subprocess

import pytest

from tests.operations.engines import rendered

ROOT = pathlib.Path(__file__).resolve().parents[3]
_PYTHON = ROOT / '.venv-manifests/bin/python'
# Every option of an engine.
_ALL = {
  'jobset': ('--cpus=4', '--memory=8Gi', '--secret=keys', '--namespace=n', '--grace_seconds=30', '--max_restarts=7'),
  'vertex': ('--accelerator=NVIDIA_L4', '--gpus=2', '--time=3600s', '--service_account=a@b.iam.gserviceaccount.com'),
  'skypilot': ('--infra=gcp/europe-west4', '--cpus=4+', '--memory=16', '--image=docker:a/b:1', '--setup=true'),
}
_WITHOUT = {
  'jobset': ('--nodes=1', '--gpus=0'),
  'vertex': ('--nodes=1',),
  'skypilot': ('--nodes=1',),
}
# An invalid manifest, and the message of its maker's package.
_WRONG = {
  'jobset': [
    ('spec.failurePolicy.maxRestart=3', 'maxRestart'),
    ('spec.failurePolicy.maxRestarts=often', 'maxRestarts'),
    ('spec.replicatedJobs.0.template.spec.template.spec.containers.0.imageUrl=a', 'imageUrl'),
    ('spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.onExitCodes.values=2', 'values'),
  ],
  'vertex': [
    ('workerPoolSpecs.0.containerSpec.image=a', 'image'),
    ('workerPoolSpecs.0.machineSpec.acceleratorType=NVIDIA_L5', 'acceleratorType'),
    ('scheduling.timeout=1 hour', 'timeout'),
  ],
  'skypilot': [
    ('resources.job_recovery.recover_on_exit_code=75', 'recover_on_exit_code'),
    ('resources.job_recovery.recover_on_exit_codes=[256]', '256'),
    ('resources.infra=nowhere/a', 'infra'),
    ('nodes=2', 'nodes'),
  ],
}


def _mistakes(engine, texts):
  done = subprocess.run(
    [str(_PYTHON), str(ROOT / 'tests/operations/engines/published.py'), engine],
    input=json.dumps(texts),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not _PYTHON.exists(), reason='no published models and schemas here: make manifests')
@pytest.mark.parametrize('engine', list(_ALL))
def test_manifests_are_what_their_makers_publish(capsys, engine):
  flags = [flag for flag in rendered.ODD if engine != 'vertex' or '$(' not in flag]
  right = [
    rendered.text(capsys, engine, *words, '--env=A=$(B) 010', flags=flags)
    for words in ((), _ALL[engine], _WITHOUT[engine])
  ]
  wrong = [rendered.text(capsys, engine, f'--engine_arg={argument}', flags=()) for argument, _ in _WRONG[engine]]
  found = _mistakes(engine, [*right, *wrong])
  assert found[: len(right)] == [[]] * len(right)
  for (argument, expected), mistakes in zip(_WRONG[engine], found[len(right) :]):
    assert len(mistakes) >= 1 and expected in mistakes[0], (argument, mistakes)
