"""Runs an exported model on examples, in its own runtime and a process without this library.

    python -I runtime_script.py REQUEST.json

The request holds `format` (saved_model, litert, litert_tensorflow or onnx), `model` (its path), `inputs` (the path of
an .npz), `outputs` (the path of the .npz to write), `threads`, and `seconds`, the time for the measurement of latency.
The last line on stdout is a JSON object: `latency_ms` (the median of single examples), `runs`, `threads`, `runtime`,
and `modules`, the loaded packages that an export must not need.

An .npz has the tensors of each example: `7:NAME` is the tensor NAME of the eighth. A tensor of bytes is `7:NAME:bytes`
(their concatenation), `7:NAME:lengths` and `7:NAME:shape`.
"""

import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

_WARM_UP = 3
_MOST_RUNS = 200


def _litert(path, threads, module):
  interpreter = module.Interpreter(model_path=path, num_threads=threads)
  interpreter.allocate_tensors()
  runner = interpreter.get_signature_runner(next(iter(interpreter.get_signature_list())))
  return lambda inputs: runner(**inputs)


def _load_litert(path, threads):
  import ai_edge_litert
  from ai_edge_litert import interpreter

  return _litert(path, threads, interpreter), f'ai-edge-litert {_version(ai_edge_litert, "ai-edge-litert")}'


def _load_litert_tensorflow(path, threads):
  """TensorFlow's interpreter, which has the operations of TensorFlow."""
  import tensorflow as tf

  return _litert(path, threads, tf.lite), f'tensorflow {tf.__version__} (its LiteRT interpreter)'


def _load_onnx(path, threads):
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = threads
  options.log_severity_level = 3
  session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
  names = [output.name for output in session.get_outputs()]
  return lambda inputs: dict(zip(names, session.run(names, inputs))), f'onnxruntime {onnxruntime.__version__}'


def _load_saved_model(path, threads):
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(threads)
  loaded = tf.saved_model.load(path)
  default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

  def run(inputs):
    tensors = {
      name: tf.constant(list(value), tf.string) if value.dtype == object else tf.constant(value)
      for name, value in inputs.items()
    }
    found = {
      name: tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
      for name, tensor in loaded.signatures[default](**tensors).items()
    }
    return {name: tensor.numpy() for name, tensor in found.items()}

  return run, f'tensorflow {tf.__version__}'


LOADERS = {
  'saved_model': _load_saved_model,
  'litert': _load_litert,
  'litert_tensorflow': _load_litert_tensorflow,
  'onnx': _load_onnx,
}


def _version(module, distribution):
  import importlib.metadata

  return getattr(module, '__version__', None) or importlib.metadata.version(distribution)


def store(path, examples):
  """Writes the tensors of examples, dictionaries of arrays by name."""
  found: dict[str, Any] = {}
  for number, example in enumerate(examples):
    for name, array in example.items():
      array, key = np.asarray(array), f'{number}:{name}'
      if array.dtype.kind in 'OSU':
        values = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()]
        found[f'{key}:bytes'] = np.frombuffer(b''.join(values), np.uint8)
        found[f'{key}:lengths'] = np.array([len(value) for value in values], np.int64)
        found[f'{key}:shape'] = np.array(array.shape, np.int64)
      else:
        found[key] = array
  np.savez(path, **found)


def load(path):
  """The examples of `store`."""
  examples: list[dict[str, Any]] = []
  with np.load(path, allow_pickle=False) as stored:
    for key in stored.files:
      if key.endswith((':lengths', ':shape')):
        continue
      array = stored[key]
      if key.endswith(':bytes'):
        key = key.removesuffix(':bytes')
        ends = np.cumsum(stored[f'{key}:lengths'])
        values = np.empty(len(ends), object)
        values[:] = [array[start:end].tobytes() for start, end in zip(ends - stored[f'{key}:lengths'], ends)]
        array = values.reshape(stored[f'{key}:shape'])
      number, _, name = key.partition(':')
      examples += [{} for _ in range(int(number) + 1 - len(examples))]
      examples[int(number)][name] = array
  return examples


def _median_ms(run, example, seconds):
  """The median time of single examples, in ms, and the number of runs."""
  for _ in range(_WARM_UP):
    run(example)
  times: list[float] = []
  end = time.perf_counter() + seconds
  while len(times) < _MOST_RUNS and (not times or time.perf_counter() < end):
    begun = time.perf_counter()
    run(example)
    times.append(time.perf_counter() - begun)
  return 1000 * statistics.median(times), len(times)


def main(path):
  """Answers a request."""
  with open(path, encoding='utf-8') as file:
    request = json.load(file)
  run, runtime = LOADERS[request['format']](request['model'], request['threads'])
  examples = load(request['inputs'])
  store(request['outputs'], [run(example) for example in examples])
  latency, runs = _median_ms(run, examples[0], request['seconds'])
  unwanted = [name for name in ('official_ext', 'official', 'tensorflow') if name in sys.modules]
  facts = {'latency_ms': latency, 'runs': runs, 'threads': request['threads'], 'runtime': runtime, 'modules': unwanted}
  print(json.dumps(facts), flush=True)
  os._exit(0)  # Some runtimes crash when Python unloads them.


if __name__ == '__main__':
  main(sys.argv[1])
