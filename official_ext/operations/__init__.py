"""Many runs: lists, queues, sweeps, engines, trackers and the console.

Imports `base` alone, and never TensorFlow. Start with `runs/index.py`.
"""
