"""The kind of device on which a strategy computes. Imports no part of Model Garden."""

import tensorflow as tf


def device_type(strategy: tf.distribute.Strategy) -> str:
  """'CPU', 'GPU' or 'TPU': the devices of the strategy's replicas."""
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return 'TPU'
  if isinstance(
    strategy,
    (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.OneDeviceStrategy),
  ):
    devices = strategy.extended.worker_devices
  else:
    devices = [device.name for device in tf.config.list_logical_devices('GPU')]
  return 'GPU' if any('GPU' in device.upper() for device in devices) else 'CPU'
