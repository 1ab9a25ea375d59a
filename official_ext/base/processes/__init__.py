"""Processes of this machine: their identity, their command, how they are started. No TensorFlow.

Start with `process_identity.py`.
"""
