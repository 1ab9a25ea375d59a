"""NT-Xent, the loss of SimCLR, over the batches of all replicas.

T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
"""

import tensorflow as tf

_NEVER = -1e9  # A logit that takes no part in a softmax.


def all_gather(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Collects the replicas' shares of a batch; gradients flow back to every replica's share. Replica context.

  Args:
    tensor: of shape [b, ...], b the same on all replicas.

  Returns:
    (all, first): a tensor of shape [replicas * b, ...], and where in it this replica's share begins, int32 scalar.
  """
  if tf.distribute.get_strategy().num_replicas_in_sync == 1:
    return tensor, tf.constant(0)
  context = tf.distribute.get_replica_context()
  return context.all_gather(tensor, axis=0), tf.cast(context.replica_id_in_sync_group, tf.int32) * tf.shape(tensor)[0]


def nt_xent(
  local: tf.Tensor, everything: tf.Tensor, first: tf.Tensor, temperature: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Cross-entropy of finding an image's other view among all other views of all images.

  Args:
    local: float [b, 2, d], two views of each of this replica's images, of length 1.
    everything: float [n, 2, d], the views of all replicas.
    first: where in `everything` the rows of `local` begin: int scalar.
    temperature: by which similarities are divided.

  Returns:
    (loss, accuracy): scalars, the means over this replica's 2 b views. `accuracy` is the share of the views whose
    nearest is the right one.
  """
  size = local.shape[-1]
  anchors, candidates = tf.reshape(local, [-1, size]), tf.reshape(everything, [-1, size])
  logits = tf.matmul(anchors, candidates, transpose_b=True) / temperature
  own = 2 * first + tf.range(tf.shape(anchors)[0])
  other = tf.bitwise.bitwise_xor(own, 1)  # Views 2 i and 2 i + 1 are of one image.
  logits += _NEVER * tf.one_hot(own, tf.shape(candidates)[0], dtype=logits.dtype)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=other, logits=logits)
  is_found = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), other)
  return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(is_found, tf.float32))
