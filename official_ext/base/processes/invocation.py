"""How this process was started, for a restart: its command, and the relevant part of its environment."""

from collections.abc import Mapping
import json
import os
import re
import shlex
import sys

from official_ext.base import credentials
from official_ext.base.processes import visible_gpus

CLUSTER = 'TF_CONFIG'
# The variables that decide which code and data are found, and the computation; credentials are left out below. The
# first two this library sets by itself.
_MATTERS = re.compile(
  r'(?!TF_USE_LEGACY_KERAS|TF_CPP_MIN_LOG_LEVEL)'
  r'(?:PYTHON(?:PATH|HASHSEED|OPTIMIZE|UTF8)|LD_(?:LIBRARY_PATH|PRELOAD)'
  r'|(?:CUDA|CUDNN|CUBLAS|NVIDIA|ROCR|HIP|NCCL|OMP|MKL|KMP|OPENBLAS|XLA|TF|TFDS|TFHUB|JAX|KERAS|TORCH|PYTORCH|HF|'
  r'TRANSFORMERS)_[A-Z0-9_]+)'
)
# Given out anew at each start, by the queue for example: the present value counts.
_GIVEN_OUT = (visible_gpus.VARIABLE,)


def command() -> str:
  """The command of this process as a shell takes it, with passwords masked: `-m` and Python's own flags included."""
  arguments = sys.argv[1:]
  place = len(sys.orig_argv) - len(arguments)
  # A process that was forked, or has changed its arguments, is recognized by these alone.
  has_origin = bool(arguments) and place > 1 and sys.orig_argv[place:] == arguments
  words = sys.orig_argv[1:place] if has_origin else sys.argv[:1]
  return shlex.join([sys.executable, *map(credentials.mask, [*words, *arguments])])


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
  """Those variables of an environment, by default this process's, that matter, without any that holds a password."""
  return {
    name: value
    for name, value in sorted(variables.items())
    if _matters(name) and credentials.mask_values({name: value})[name] == value
  }


def restored(recorded: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
  """An environment with the recorded relevant variables, and the present values of all others.

  Args:
    recorded: the result of `environment`.
    present: the current environment. The GPUs that may be used, if it names them.
  """
  kept = {
    name: value for name, value in present.items() if name in _GIVEN_OUT or not _matters(name) or _is_secret(name)
  }
  return {**recorded, **kept}


def num_tasks(recorded: Mapping[str, str]) -> int:
  """How many processes a recorded environment says that a run has."""
  try:
    cluster = json.loads(recorded.get(CLUSTER) or '{}').get('cluster', {})
    return max(1, sum(map(len, cluster.values())))
  except (AttributeError, TypeError, ValueError, RecursionError):
    return 1


def _matters(name: str) -> bool:
  return _MATTERS.fullmatch(name) is not None


def _is_secret(name: str) -> bool:
  return credentials.mask_values({name: 'a'})[name] != 'a'
