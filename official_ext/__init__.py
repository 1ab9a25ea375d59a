"""Experiments on TensorFlow Model Garden that survive, bend and run fast.

Importing this package selects `tf_keras`, the Keras that Model Garden is written for. Import it before
`tensorflow`.
"""

import importlib
import os
from typing import Any

# Model Garden is Keras 2 code. Without this TensorFlow loads Keras 3 too, for nothing.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# TensorFlow's C++ code tells of every missing GPU and every end of a data set. What fails is raised in Python.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

__version__ = '0.1.0'

# What is imported when it is asked for: `import official_ext` itself must stay quick, and come before TensorFlow.
_LAZY = {'load': 'official_ext.cli.trained_runs'}


def __getattr__(name: str) -> Any:
  if name in _LAZY:
    return getattr(importlib.import_module(_LAZY[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
