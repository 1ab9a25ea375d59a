"""Computing a part of the network once more for its gradient, instead of keeping its activations.

`tf.recompute_grad` does the same, with traps: it calls its function again when the gradient is made (a lambda in a loop
sees the loop's last layer), redraws dropout outside of this library's steps, and finds variables by looking at the
tape. Here weights are arguments.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from official_ext.training.model_parts import layer_reports
from official_ext.training.model_parts import layer_weights
from official_ext.training.model_parts import ordering

Extras = Mapping[str, tf.Tensor]


def remat(
  function: Callable[[tf.Tensor, Extras], tf.Tensor], x: tf.Tensor, parts: Sequence[object], extras: Extras
) -> tf.Tensor:
  """`function(x, extras)`, of which the backward pass keeps `x` alone.

  Args:
    function: calls `parts`, and nothing else that a gradient is asked of. It is called twice, and must compute the
      same: random numbers come from seeds that it is given.
    x: floating, of any shape.
    parts: the layers that it calls, `layers.Part` all of them. Frozen ones get no gradient.
    extras: tensors by name, which are handed to `function`; floating ones have gradients.
  """
  trained, others = layer_weights.split(parts)
  fixed = [layer_weights.value_of(variable) for variable in others]
  names = differentiable(extras)
  wanted = layer_reports.is_wanted()

  def run(x, *tensors):
    with (
      layer_weights.handed_in([*trained, *others], [*tensors[len(names) :], *fixed]),
      layer_reports.collected(wanted) as reports,
    ):
      y = function(x, {**extras, **dict(zip(names, tensors))})
    return y, *reports

  @tf.custom_gradient
  def once(x, *tensors):
    def gradient(*dys):
      with tf.control_dependencies(dys):
        inputs = [ordering.after(x, dys[0]), *map(tf.identity, tensors)]
        with tf.GradientTape() as tape:
          tape.watch(inputs)
          outputs = run(*inputs)
      return tape.gradient(outputs, inputs, output_gradients=dys, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return run(x, *tensors), gradient

  y, *reports = once(x, *(extras[name] for name in names), *map(layer_weights.value_of, trained))
  for value in reports:
    layer_reports.report(value)
  return y


def differentiable(extras: Extras) -> list[str]:
  """The names of the floating ones."""
  return sorted(name for name, value in extras.items() if value.dtype.is_floating)
