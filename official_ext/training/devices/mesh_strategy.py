"""Defines the strategy of a run whose mesh spans several processes.

Every process runs the same program: it reads the whole global batch, holds a copy of all variables on its host and
evaluates by itself. Only the steps communicate, on the mesh (mesh.py). Only the chief writes files.
"""

import os

import tensorflow as tf
from tensorflow.experimental import dtensor

from official_ext.base import tf_internals
from official_ext.training.devices import cluster as cluster_lib

JOB = 'worker'  # Of all processes: DTensor has one job.


class _Extended(tf_internals.OneDeviceExtended):
  """The `extended` of `tf.distribute.OneDeviceStrategy`, for one of several processes."""

  def __init__(self, strategy: tf.distribute.Strategy, device: str, is_chief: bool):
    super().__init__(strategy, device)
    self._is_chief = is_chief

  @property
  def should_checkpoint(self) -> bool:
    return self._is_chief

  @property
  def should_save_summary(self) -> bool:
    return self._is_chief


class MeshStrategy(tf.distribute.OneDeviceStrategy):
  """Holds a process's own copy of the variables."""

  def __init__(self, device: str, is_chief: bool):
    """Makes the strategy of this process.

    Args:
      device: of the variables.
      is_chief: whether this process's files count.
    """
    tf.distribute.Strategy.__init__(self, _Extended(self, device, is_chief))  # pylint: disable=non-parent-init-called


def join(cluster: cluster_lib.Cluster) -> MeshStrategy:
  """Connects this process to the others of a cluster, for DTensor. Before TensorFlow has set its devices up."""
  # DTensor has no other interface than these variables, which are derived from TF_CONFIG.
  os.environ.update(
    DTENSOR_JOB_NAME=JOB,
    DTENSOR_CLIENT_ID=str(cluster.index),
    DTENSOR_NUM_CLIENTS=str(len(cluster.addresses)),
    DTENSOR_JOBS=','.join(cluster.addresses),
  )
  # The caller has configured the coordination service, with its own timeouts.
  dtensor.initialize_accelerator_system('CPU', enable_coordination_service=False)
  return MeshStrategy('device:CPU:0', cluster.is_chief)
