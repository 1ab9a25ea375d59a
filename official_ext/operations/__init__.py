"""Many runs: lists, queues, sweeps, engines and the console. Start with `operations/runs/run_index.py`.

Its modules import only `base`, and never TensorFlow: commands, runners and pages must start fast. Only paths on remote
file systems load it (base/files/paths.py). tests/operations/without_tensorflow_test.py checks this.
"""
