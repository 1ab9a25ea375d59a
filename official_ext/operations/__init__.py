"""Many runs: lists, queues, sweeps, engines and the console.

Imports `base` alone, and never TensorFlow. Start with `operations/runs/run_index.py`.
"""
