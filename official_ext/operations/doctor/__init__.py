"""Checks of this machine and environment: `official-ext doctor`. No TensorFlow in this process.

Start with `check_results.py`: each check returns such a result.
"""
