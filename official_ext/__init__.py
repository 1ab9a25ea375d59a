"""Experiments on TensorFlow Model Garden that survive, bend and run fast.

Importing this package selects `tf_keras`, the Keras that Model Garden is written for. Import it before
`tensorflow`.
"""

import os

# Model Garden is Keras 2 code. Without this TensorFlow loads Keras 3 too, for nothing.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# TensorFlow's C++ code tells of every missing GPU and every end of a data set. What fails is raised in Python.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

__version__ = '0.1.0'
