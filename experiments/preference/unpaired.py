"""KTO's batches: single answers with labels, and each prompt with the answer to another one."""

from collections.abc import Mapping

import tensorflow as tf

import official_ext as ext

Rows = Mapping[str, tf.Tensor]


def mismatched(rows: Rows) -> dict[str, tf.Tensor]:
  """Each prompt with the answer of the row before it, the first with the last one's, as TRL's KTOTrainer pairs them.

  Args:
    rows: `input_ids`, `labels`, `segment_ids` and `position_ids`, int32 [b, t]: a prompt without labels, an answer with
      labels, padding.

  Returns:
    The same features, of these texts; what exceeds t tokens is cut off.
  """
  ids, segments = rows['input_ids'], rows['segment_ids']
  size = tf.shape(ids)[1]
  columns = tf.range(size)[tf.newaxis]
  is_answer = rows['labels'] != ext.losses.IGNORED_LABEL
  # Columns of the first token of answers; and the columns after texts.
  starts = tf.reduce_min(tf.where(is_answer, columns, size), axis=1, keepdims=True)
  ends = tf.reduce_sum(tf.cast(segments > 0, tf.int32), axis=1, keepdims=True)
  roll = lambda values: tf.roll(values, 1, axis=0)
  is_prompt = columns < starts
  source = columns - starts + roll(starts)
  is_other = ~is_prompt & (source < roll(ends))
  others = tf.gather(roll(ids), tf.clip_by_value(source, 0, size - 1), batch_dims=1)
  new_ids = tf.where(is_prompt, ids, tf.where(is_other, others, 0))
  is_token = tf.cast(is_prompt | is_other, tf.int32)
  return {
    'input_ids': new_ids,
    'labels': tf.where(is_other, new_ids, ext.losses.IGNORED_LABEL),
    'segment_ids': is_token,
    'position_ids': columns * is_token,
  }
