"""A run that is given passwords leaves none behind, prints none, and continues with another."""

import json

import pytest

ARGUMENTS = [
  '--experiment=digits_mlp',
  '--mode=train',
  '--set=steps_per_loop=5',
  '--set=runtime.enable_xla=false',
  '--set=trainer.progress_bar=false',
]
NOBODY = {'MLFLOW_HTTP_REQUEST_MAX_RETRIES': '0', 'MLFLOW_HTTP_REQUEST_TIMEOUT': '2', 'WANDB_API_KEY': 'PW0123456789'}


def run(run_train, folder, password, *more):
  # Nobody listens there: the server that is down.
  uri = f'--set=trainer.mlflow.tracking_uri=http://user:{password}@127.0.0.1:1'
  return run_train([*ARGUMENTS, uri, f'--model_dir={folder}', *more], env=NOBODY)


@pytest.mark.slow
def test_a_run_with_passwords_prints_none_and_resumes_with_another(run_train, tmp_path):
  first = run(run_train, tmp_path, 'PWfirst', '--set=train_steps=5', '--set=trainer.writers=[mlflow]')
  assert first.returncode == 0, first.stderr
  # The writer's failure is reported, and where.
  assert 'MlflowWriter failed to write' in first.stderr and 'http://user:***@127.0.0.1:1' in first.stderr
  second = run(run_train, tmp_path, 'PWsecond', '--set=train_steps=10', '--set=trainer.writers=[]')
  assert second.returncode == 0, second.stderr
  # The differences are reported: not the password.
  assert 'trainer.train_steps: 5 -> 10' in second.stdout and 'tracking_uri' not in second.stdout
  record = json.loads((tmp_path / 'run.json').read_text())
  assert record['step'] == 10 and 'tracking_uri=http://user:***@127.0.0.1:1' in record['command']
  assert 'tracking_uri: http://user:***@127.0.0.1:1' in (tmp_path / 'params.yaml').read_text()
  contents = {path.name: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
  contents['output'] = ''.join(process.stdout + process.stderr for process in (first, second)).encode()
  assert [name for name, text in contents.items() if b'PW' in text and not name.endswith('data-00000-of-00001')] == []


def test_a_password_that_was_left_out_of_params_yaml_has_to_be_given_again(run_train, tmp_path):
  (tmp_path / 'params.yaml').write_text('trainer: {mlflow: {tracking_uri: "http://user:***@127.0.0.1:1"}}')
  process = run_train(
    [*ARGUMENTS, '--set=train_steps=5', f'--model_dir={tmp_path}/run', f'--config_file={tmp_path}/params.yaml']
  )
  assert process.returncode == 2
  assert (
    'error: trainer.mlflow.tracking_uri: http://user:***@127.0.0.1:1: the value behind *** is left out of params.yaml'
  ) in process.stderr
  assert not (tmp_path / 'run').exists()
