"""A conversion by AutoGraph in one forked process is reused by the next; and it is the same code."""

import json
import time

# Options that no training has, so that no other test has requested this conversion.
_CODE = """
  import json
  import tensorflow as tf
  from tensorflow.python.autograph.pyct import transpiler
  from official_ext.data import keyed_random as sampling

  converted = []
  convert = transpiler.GenericTranspiler.transform_function
  transpiler.GenericTranspiler.transform_function = lambda *args: converted.append(args[1].__name__) or convert(*args)
  features = tf.autograph.experimental.Feature.ASSERT_STATEMENTS
  function = tf.autograph.to_graph(sampling.sequential_indices, experimental_optional_features=features)
  with open(function.ag_module.__file__) as file:
    lines = sorted((place.lineno, origin.loc.lineno) for place, origin in function.ag_source_map.items())
    print(json.dumps([converted, file.read(), lines]))
"""


def test_a_conversion_of_one_process_is_found_by_the_next(start_script):
  def convert():
    done = start_script(_CODE).finish()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

  names, code, lines = convert()
  assert names == ['sequential_indices'] and 'def tf__sequential_indices' in code and lines
  deadline = time.monotonic() + 60
  while names:
    assert time.monotonic() < deadline, 'the server has not converted it'
    names, same_code, same_lines = convert()
  assert (same_code, same_lines) == (code, lines)
