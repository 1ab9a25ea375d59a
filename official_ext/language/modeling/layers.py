"""The small layers of a decoder: products, norms, embeddings, dropout; and weights without values.

A layer has its weights from the start, computes in the policy's compute dtype (norms in float32), and reads weights by
`remat.value_of`, so that it can represent all layers of its kind. Within `meta_weights`, weights take no memory:

    with layers.meta_weights():
      model = decoder.LanguageModel(config)      # each weight is a `MetaVariable`
    ...                                          # values arrive in any order, one tensor at a time
    layers.finish_weights(model_weights.layer_parts(model))  # each weight is a variable of those bytes
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import math
import mmap
import threading
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.data import keyed_random
from official_ext.training.model_parts import clusters
from official_ext.training.model_parts import remat

_META_PART = 2**20  # Values that are cast at once.
_STRIP = 64  # Columns of a matrix that are copied at once: more of them are not in the processor's cache any more.
_LARGE = 2**23  # Bytes from which on memory comes in large pages, of 2 MiB as a rule.


class _MetaWeights(threading.local):
  is_unmade = False


_META_WEIGHTS = _MetaWeights()


class MetaVariable:
  """A weight without values.

  Attributes:
    shape: of the variable that it becomes, the rows of stacked layers included.
    dtype: in which values arrive: a cast to it is part of loading.
    kept_dtype: of the variable: values are cast to it after that.
    initializer: Keras' word for the values, if none arrive.
    options: more arguments of the variable's `add_weight`.
  """

  def __init__(
    self,
    shape: tuple[int, ...],
    dtype: tf.DType | str | None,
    initializer: tf_keras.initializers.Initializer | str = 'zeros',
    options: dict[str, Any] | None = None,
  ):
    self.shape = shape
    self.dtype = self.kept_dtype = tf.as_dtype(dtype)
    self.initializer = initializer
    self.options = dict(options or {})
    self._values: np.ndarray | None = None

  def assign(self, value: np.ndarray, row: int | tuple[int, ...] | None) -> None:
    """Takes the value, or one row of a stacked one.

    Args:
      value: is copied.
      row: which row, or which slice of which row; None for the whole.
    """
    if self._values is None:
      self._values = _own_pages(self.shape, self.kept_dtype.as_numpy_dtype)  # In memory as they are written to.
    if self.dtype == self.kept_dtype:
      place = ... if row is None else row
      if value.ndim != 2 or value.flags.c_contiguous:
        self._values[place] = value  # A row of numbers gives a scalar, not a view to copy to.
      else:
        _copy_transposed(value, self._values[place])
      return
    target = self._values if row is None else self._values[row]
    rows = max(1, _META_PART * len(value) // value.size)
    for start in range(0, len(value), rows):  # In parts: the whole in another type may be twice the kept size.
      target[start : start + rows] = value[start : start + rows].astype(self.dtype.as_numpy_dtype)

  def tensor(self) -> tf.Tensor:
    """All values, in the memory of the input, to which no one else may write from now on."""
    if self._values is None:
      return tf.cast(tf_keras.initializers.get(self.initializer)(self.shape, self.dtype), self.kept_dtype)
    values, self._values = self._values, None
    bits = values.view(f'i{values.itemsize}')  # numpy's bfloat16 is unknown to DLPack.
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(bits.__dlpack__()), self.kept_dtype)


def _own_pages(shape, dtype):
  """An array of zeros, aligned as TensorFlow asks of memory that it uses without a copy.

  It lies in separate pages, not between temporary reads, which would leave holes after it.
  """
  size = max(1, math.prod(shape)) * np.dtype(dtype).itemsize
  pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  if size >= _LARGE and hasattr(mmap, 'MADV_HUGEPAGE'):  # Linux.
    with contextlib.suppress(OSError):  # A kernel without them.
      pages.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def _copy_transposed(value, target):
  """Copies a transposed matrix by strips: row by row it would take up to four times as long."""
  for start in range(0, value.shape[1], _STRIP):
    target[:, start : start + _STRIP] = value[:, start : start + _STRIP]


@contextlib.contextmanager
def meta_weights() -> Iterator[None]:
  """Within, the weights of layers that are made are `MetaVariable`."""
  _META_WEIGHTS.is_unmade = True
  try:
    yield
  finally:
    _META_WEIGHTS.is_unmade = False


def wants_meta_weights() -> bool:
  """Whether layers that are made here are to have unmade weights."""
  return _META_WEIGHTS.is_unmade


def finish_weights(parts: list[Any]) -> None:
  """Makes variables of all unmade weights, of the values that have arrived.

  Args:
    parts: each a `Part`. Variables come in the order in which their weights were described, whichever arrived first:
      optimizers number them.
  """
  for part in parts:
    for attribute, weight in list(vars(part).items()):
      if type(weight) is MetaVariable:
        part.put_weight(attribute, weight.tensor(), weight.kept_dtype, **weight.options)


_CAST_AT_ONCE = 2**24  # Numbers of a frozen matrix, such as a head, that are kept in the compute dtype.

_SQRT_ONE_HALF = 0.5**0.5


def exact_gelu(x: tf.Tensor) -> tf.Tensor:
  """The Gaussian error linear unit, x Phi(x): Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

  As in PyTorch by erf, and in float32 at least: tf.nn.gelu's erfc, which no CPU's kernel has in vectors, takes several
  times as long, and in bfloat16 1 + erf(x) would lose small probabilities.
  """
  y = tf.cast(x, tf.float32) if x.dtype.size < 4 else x
  return tf.cast(0.5 * y * (1 + tf.math.erf(y * tf.cast(_SQRT_ONE_HALF, y.dtype))), x.dtype)


ACTIVATIONS = {
  'silu': tf.nn.silu,
  'gelu': exact_gelu,
  'gelu_new': lambda x: tf.nn.gelu(x, approximate=True),
  'gelu_pytorch_tanh': lambda x: tf.nn.gelu(x, approximate=True),
  'relu': tf.nn.relu,
}


@functools.cache
def activation(name: str, is_gated: bool = False) -> Callable[..., tf.Tensor]:
  """One of `ACTIVATIONS`, or with a gate act(gate) * x: of (gate, x). See clusters.py."""
  act = ACTIVATIONS[name]
  return clusters.cluster((lambda gate, x: act(gate) * x) if is_gated else act)


class Part(tf_keras.layers.Layer):
  """A layer that is built when it is made.

  Attributes:
    num_rows: 0, or of how many layers it holds the weights, stacked: each weight has that many rows then.
    num_slices: 0, or how many weights of equal shape each row holds, such as one for each expert.
    is_frozen: whether its own weights are constants, which checkpoints leave out: see model_weights.py.
    is_packed: whether its own weights are the packed form of others, in dtypes that stay.
    is_saved: whether its own weights are trained with adapters, and saved with them: see model_weights.py.
    is_merged: whether its weights are a sum or an approximation of others, which are in no folder.
  """

  is_packed = False
  is_saved = False
  is_merged = False

  def __init__(self, name: str, num_rows: int = 0, dtype: tf.DType | str | None = None):
    """Makes the layer.

    Args:
      name: its path in the model, 'decoder/blocks/0/mlp': its variables' names begin with it.
      num_rows: see the class.
      dtype: a Keras dtype policy; None for the global one.
    """
    super().__init__(name=name, dtype=dtype, autocast=False)
    self.num_rows = num_rows
    self.num_slices = 0
    self.is_frozen = False
    self.built = True

  def inside(self, name: str) -> dict[str, Any]:
    """The arguments of `Part` for a part of this one."""
    return {'name': f'{self.name}/{name}', 'num_rows': self.num_rows, 'dtype': self._dtype_policy}

  def make_weight(
    self, name: str, shape: tuple[int, ...], initializer: tf_keras.initializers.Initializer | str, **options: object
  ) -> tf.Variable:
    """A variable, with a row for each layer if they are stacked; for `options` see Keras' `add_weight`.

    A `MetaVariable` if these are requested.
    """
    if self.num_rows:
      shape = (self.num_rows, *shape)
    if wants_meta_weights():
      return MetaVariable(shape, options.pop('dtype', None) or self.variable_dtype, initializer, options)
    name = f'{self.name}/{name}'
    return self.add_weight(name=name, shape=shape, initializer=initializer, experimental_autocast=False, **options)

  def put_weight(self, attribute: str, values: np.ndarray, dtype: tf.DType | str | None, **options: Any) -> None:
    """Makes a variable of values, in place of an attribute.

    Args:
      attribute: its name here.
      values: a tensor or an array. A tensor of the right dtype is not copied.
      dtype: of the variable.
      **options: more arguments of Keras' `add_weight`.
    """
    if isinstance(getattr(self, attribute, None), tf.Variable):
      delattr(self, attribute)
    make = lambda shape, dtype=None, **kwargs: tf.cast(values, dtype)
    options = dict(name=f'{self.name}/{attribute}', dtype=dtype, experimental_autocast=False, **options)
    setattr(self, attribute, self.add_weight(shape=values.shape, initializer=make, **options))

  def replace_weight(self, attribute: str, trainable: bool, dtype: tf.DType | str | None = None) -> None:
    """Puts a variable with the same values in the place of one of this layer's own.

    Args:
      attribute: its name here.
      trainable: whether it is trained: of a variable this cannot be changed.
      dtype: of the new variable; None for the old one's.
    """
    old = getattr(self, attribute)
    self.put_weight(attribute, tf.convert_to_tensor(old), dtype or old.dtype, trainable=trainable)

  def own_weights(self) -> dict[str, tf.Variable]:
    """The layer's own variables by attribute, not its parts'."""
    return {name: value for name, value in vars(self).items() if isinstance(value, tf.Variable)}

  def num_weights(self) -> int:
    """How many numbers the layer's own variables represent, packed or not."""
    return sum(variable.shape.num_elements() for variable in self.own_weights().values())

  def _trackable_children(self, save_type: str = 'checkpoint', **kwargs: object) -> dict[str, object]:
    """The variables that checkpoints save: without frozen weights, see model_weights.py."""
    children = super()._trackable_children(save_type, **kwargs)
    if save_type != 'checkpoint' or not self.is_frozen:
      return children
    return {name: child for name, child in children.items() if not isinstance(child, tf.Variable)}

  def value(self, variable: tf.Variable, dtype: tf.DType | str | None = None) -> tf.Tensor:
    """The value of a variable, in the compute dtype or another."""
    return remat.cast_of(variable, dtype or self.compute_dtype)

  def product_of(self, x: tf.Tensor, variable: tf.Variable, transpose_b: bool = False) -> tf.Tensor:
    """See `product`, with a variable as the matrix.

    Frozen weights are not kept in the compute dtype as well, except within `remat.cast_once`.
    """
    if not self.is_frozen or variable.dtype == self.compute_dtype or remat.is_cast_once(variable):
      return product(x, self.value(variable), transpose_b=transpose_b)
    matrix, axis = remat.value_of(variable), 0 if transpose_b else 1
    size = matrix.shape[axis]
    step = max(1, size * _CAST_AT_ONCE // matrix.shape.num_elements())
    sizes_of_parts = [min(step, size - start) for start in range(0, size, step)]
    parts = [[part] for part in tf.split(matrix, sizes_of_parts, axis)] if len(sizes_of_parts) > 1 else [[matrix]]
    cast = lambda other, part: tf.cast(clusters.after(part, other), self.compute_dtype)
    return product_of_packed(x, parts, cast, transpose_b)


class Linear(Part):
  """x kernel + bias.

  Attributes:
    kernel: [in, out].
    bias: [out], or None.
  """

  def __init__(
    self,
    input_size: int,
    output_size: int,
    use_bias: bool,
    initializer: tf_keras.initializers.Initializer | str,
    **options: Any,
  ):
    super().__init__(**options)
    self.input_size = input_size
    self.output_size = output_size
    self.kernel = self.make_weight('kernel', (input_size, output_size), initializer)
    self.bias = self.make_weight('bias', (output_size,), 'zeros') if use_bias else None

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """[..., in] -> [..., out], in the compute dtype."""
    y = self.product(x)
    return y if self.bias is None else y + self.value(self.bias)

  def product(self, x: tf.Tensor) -> tf.Tensor:
    """X kernel, in the compute dtype."""
    return self.product_of(x, self.kernel)

  def matrix(self) -> tf.Tensor:
    """The kernel, float32 [in, out]."""
    return self.value(self.kernel, tf.float32)


def product(x: tf.Tensor, *matrices: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
  """The product x matrix over the last axis, as one product of matrices; with several, x times each in turn.

  tf.matmul with a batch would make a gradient of the matrix for every example, and add them up: 15 % of a step.

  Args:
    x: [..., in].
    *matrices: [in, out], or [out, in] with `transpose_b`.
    transpose_b: see `matrices`.
  """
  y = tf.reshape(x, [-1, x.shape[-1]])
  for matrix in matrices:
    y = tf.matmul(y, matrix, transpose_b=transpose_b)
  return tf.reshape(y, [*sizes(x)[:-1], y.shape[-1]])


def product_of_packed(
  x: tf.Tensor,
  parts: Sequence[Sequence[tf.Tensor]],
  unpack_after: Callable[..., tf.Tensor],
  transpose_b: bool = False,
) -> tf.Tensor:
  """The product of `x` with matrices side by side, each of which is there no longer than it is used.

  One is unpacked when `x` and the product with the one before are computed, and once more for the gradient of `x`, when
  that from above is computed. Else XLA would unpack the matrices of many layers before it needs them, and keep all of
  them for the backward pass.

  Args:
    x: [..., in].
    parts: of each matrix the arrays that it is made of: constants, from which no gradient is asked.
    unpack_after: makes a matrix of (a tensor that it waits for, see clusters.py, and the arrays), of x's dtype: [in,
      out], or [out, in] with `transpose_b`.
    transpose_b: see `unpack_after`.

  Returns:
    [..., the sum of all out].
  """

  @tf.custom_gradient
  def rows(x):
    found: list[tf.Tensor] = []
    for arrays in parts:
      matrix = unpack_after(found[-1] if found else x, *arrays)
      found.append(tf.matmul(x, matrix, transpose_b=transpose_b))

    def gradient(dy):
      dx = None
      for arrays, of_part in zip(parts, tf.split(dy, [y.shape[-1] for y in found], axis=-1)):
        matrix = unpack_after(of_part if dx is None else dx, *arrays)
        added = tf.matmul(of_part, matrix, transpose_b=not transpose_b)
        dx = added if dx is None else dx + added
      return dx

    return tf.concat(found, axis=-1) if len(found) > 1 else found[0], gradient

  y = rows(tf.reshape(x, [-1, x.shape[-1]]))
  return tf.reshape(y, [*sizes(x)[:-1], y.shape[-1]])


def sizes(x: tf.Tensor) -> list[int | tf.Tensor]:
  """The size of each axis: an integer if it is known, an int32 scalar if not."""
  return [known if known is not None else tf.shape(x)[axis] for axis, known in enumerate(x.shape)]


class Norm(Part):
  """RMSNorm, or LayerNorm: computed in float32, over the last axis.

  Attributes:
    scale: [size], or [..., size] with separate weights for each of the axes before, such as heads.
    bias: of a LayerNorm, of the same shape; None of one without a bias, and of an RMSNorm.
  """

  def __init__(
    self,
    size: int | tuple[int, ...],
    epsilon: float,
    offset: float = 0.0,
    norm_type: str = 'rms_norm',
    use_bias: bool = True,
    **options: Any,
  ):
    super().__init__(**options)
    self._epsilon = epsilon
    self._offset = offset
    self._is_centered = norm_type == 'layer_norm'
    shape = (size,) if isinstance(size, int) else size
    self.scale = self.make_weight('scale', shape, tf_keras.initializers.Constant(1 - offset))
    self.bias = self.make_weight('bias', shape, 'zeros') if self._is_centered and use_bias else None

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """A tensor of x's shape and dtype."""
    weights = [self.value(weight, tf.float32) for weight in (self.scale, self.bias) if weight is not None]
    return _norm(self._epsilon, self._offset, self._is_centered)(x, *weights)


@functools.cache
def _norm(epsilon, offset, is_centered):
  """A function of (x, scale, and the bias if it is centered)."""

  def norm(x, scale, bias=None):
    y = tf.cast(x, tf.float32)
    if is_centered:
      y -= tf.reduce_mean(y, axis=-1, keepdims=True)
    y *= tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
    y *= scale + offset if offset else scale
    if bias is not None:
      y += bias
    return tf.cast(y, x.dtype)

  return clusters.cluster(norm)


class Embedding(Part):
  """A row for each number.

  Attributes:
    embeddings: [rows, size].
  """

  def __init__(
    self, num_embeddings: int, size: int, initializer: tf_keras.initializers.Initializer | str, **options: Any
  ):
    super().__init__(**options)
    self.embeddings = self.make_weight('embeddings', (num_embeddings, size), initializer)

  def call(self, numbers: tf.Tensor) -> tf.Tensor:
    """int32 [...] -> [..., size], in the compute dtype."""
    return tf.cast(tf.gather(remat.value_of(self.embeddings), numbers), self.compute_dtype)

  def scores(self, x: tf.Tensor) -> tf.Tensor:
    """[..., size] -> [..., rows]: the product of `x` with every row."""
    return self.product_of(x, self.embeddings, transpose_b=True)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None, site: int) -> tf.Tensor:
  """Inverted dropout as a function of its seed: the same whenever it is computed.

  Args:
    x: floating.
    rate: the share that becomes 0, in [0, 1).
    seed: int64 [2]; None for no dropout.
    site: which draw of the seed this is.
  """
  if seed is None or not rate:
    return x
  drawn = keyed_random.random_bits(tf.shape(x), keyed_random.numbered_seed(seed, site), tf.int32)
  is_kept = drawn >= int(rate * 2**32) - 2**31
  return tf.where(is_kept, x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros([], x.dtype))


def neftune_noise(x: tf.Tensor, segments: tf.Tensor | None, alpha: float) -> tf.Tensor:
  """Noise on embeddings: uniform in +- alpha / sqrt(tokens * hidden_size) of the text, and 0 on padding.

  Jain et al. 2023, https://arxiv.org/abs/2310.05914, algorithm 1. The length is each text's, as in the paper's
  code. TRL takes the length of the padded row. In a training step the noise is a function of (seed, step, replica).

  Args:
    x: embeddings, [b, t, hidden_size].
    segments: int32 [b, t], the number of each token's text, 0 for padding; None for one text of t tokens a row.
    alpha: the scale.

  Returns:
    A tensor of x's shape and dtype.
  """
  batch, length, width = sizes(x)
  noise = tf.random.uniform(tf.shape(x), -1.0, 1.0)
  if segments is None:
    return tf.cast(noise * alpha / tf.sqrt(tf.cast(length * width, tf.float32)), x.dtype)
  # Each text has another number: a row's begin at row * (t + 1).
  numbers = segments + tf.range(batch)[:, tf.newaxis] * (length + 1)
  tokens = tf.math.unsorted_segment_sum(tf.ones_like(segments), numbers, batch * (length + 1))
  lengths = tf.cast(tf.gather(tokens, numbers) * width, tf.float32)
  scale = tf.where(segments > 0, alpha / tf.sqrt(lengths), 0.0)
  return tf.cast(noise * scale[..., tf.newaxis], x.dtype)
