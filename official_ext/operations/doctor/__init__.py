"""Checks of this machine and environment: `official-ext doctor`. No TensorFlow in this process.

Start with `findings.py`: each check returns findings.
"""
