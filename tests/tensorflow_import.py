"""The import of TensorFlow in a test process: it configures devices, or is refused."""

import atexit
import importlib.abc
import importlib.util
import os
import pathlib
import sys
import threading

NUM_CPUS = 4
REFUSED = 'TensorFlow was imported with --no-tensorflow'  # As tests/no_tensorflow/tensorflow.py raises it.
_REFUSING = pathlib.Path(__file__).resolve().parent / 'no_tensorflow'


class _ConfiguringFinder(importlib.abc.MetaPathFinder):
  """Finds TensorFlow where it is, and has `configure` called at the end of its import."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname != 'tensorflow':
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(fullname)
    execute = spec.loader.exec_module

    def execute_and_configure(module):
      execute(module)
      configure(module)

    spec.loader.exec_module = execute_and_configure
    return spec


def configure_on_import() -> None:
  """Configures devices and input pipelines as soon as TensorFlow is imported, whoever imports it."""
  assert 'tensorflow' not in sys.modules
  sys.meta_path.insert(0, _ConfiguringFinder())


def refuse() -> None:
  """Makes every import of TensorFlow fail, in this process and in those that it starts."""
  assert 'tensorflow' not in sys.modules
  sys.path.insert(0, str(_REFUSING))
  others = os.environ.get('PYTHONPATH', '')
  os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(_REFUSING), others]))


def iterate_without_autotune(tf) -> None:
  """Lets no data set that is iterated in this process tune itself.

  tf.data's tuning thread sleeps between its rounds, ever longer, and TensorFlow's cancellation does not wake it
  (`Model::OptimizeLoop` looks at a flag that is set after the wake-up call). So the garbage collection of an iterator,
  at any moment, may take as long as the iterator has lived, up to a minute.
  """
  apply_debug_options = tf.data.Dataset._apply_debug_options

  def without_autotune(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return apply_debug_options(dataset.with_options(options))

  tf.data.Dataset._apply_debug_options = without_autotune


def end_saving_threads() -> None:
  """Ends the threads of asynchronous checkpoints that are idle.

  Each lives as long as its process, and holds a checkpoint: the trainer, and all that was compiled for it.
  """
  module = sys.modules.get('tensorflow.python.checkpoint.async_checkpoint_helper')
  for thread in threading.enumerate() if module else ():
    helper = getattr(getattr(thread, '_target', None), '__self__', None)
    if isinstance(helper, module.AsyncCheckpointHelper) and not helper._queue.unfinished_tasks:
      atexit.unregister(helper._join_async_save_thread)
      helper._queue.put(False)  # The end of its thread.


def configure(tf) -> None:
  """Gives this process four logical CPUs, and input pipelines that do not tune themselves."""
  tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * NUM_CPUS
  )
  iterate_without_autotune(tf)
