"""Replaces TensorFlow in tests that must not import it: see `refuse` in tests/tensorflow_import.py."""

raise ImportError('TensorFlow was imported with --no-tensorflow')
