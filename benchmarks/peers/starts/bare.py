"""The perceptron by hand: imports, model, one step that XLA compiles."""

from benchmarks.peers.starts import marks


def main() -> None:
  """Takes one step."""
  import tensorflow as tf
  import tf_keras

  from benchmarks.peers.runners import keras_models
  from benchmarks.peers.work import digits

  marks.mark('imported')
  work = digits.perceptron()
  model, optimizer = keras_models.build(tf_keras, work), keras_models.optimizer(tf_keras, work)
  optimizer.build(model.trainable_variables)
  dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels)).shuffle(len(work.inputs)).repeat()
  inputs, labels = next(iter(dataset.batch(work.batch_size).prefetch(tf.data.AUTOTUNE)))
  marks.mark('built')

  @tf.function(jit_compile=True, autograph=False)
  def step(inputs, labels):
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(inputs, training=True))
      loss = tf.reduce_mean(losses)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

  float(step(inputs, labels))
  marks.mark('first_step')


if __name__ == '__main__':
  main()
