"""The shape of a step is a pure function of its trace and of the configuration."""

import re

import pytest
import tensorflow as tf

from official_ext.training.devices import device_types
from official_ext.training.step import step_plan
from tests import documents

# docs/contributing/update.md has a table of the rule: a column for each of these CPUs, by the flags of /proc/cpuinfo.
CPUS = {
  'AVX2': 'avx avx2 fma',
  'AVX-512': 'avx avx2 fma avx512f avx512bw avx512_vnni',
  'AVX-512 BF16 or AMX': 'avx avx2 fma avx512f avx512bw avx512_vnni avx512_bf16 amx_bf16',
}
# And a row for each of these steps.
STEPS = {
  'products in float32, fewer than 2^20 weights': dict(clusters=True, num_weights=2**20 - 1),
  "products in float32, this library's decoders": dict(clusters=True, num_weights=2**20),
  'products in float32, other layers': dict(num_weights=2**20),
  'products in bfloat16, fewer than 2^20 weights': dict(bfloat16_products=True, num_weights=2**20 - 1),
  'products in bfloat16': dict(bfloat16_products=True, clusters=True, num_weights=2**20),
  'convolutions': dict(convolutions=True, clusters=True, num_weights=2**20),
}

# Products in bfloat16, in a model that is not small, and our decoder in float32.
BFLOAT16 = dict(bfloat16_products=True, num_weights=2**20)
CLUSTERS = dict(clusters=True, num_weights=2**20)
FAST = dict(fast_products=('bfloat16', 'float32'))


def choose(traits=None, **kwargs):
  settings = dict(enable_xla='auto', device_type='CPU', single_trace=True, steps_per_execution=0, steps_per_loop=100)
  settings['num_replicas'] = 1 if kwargs.get('single_trace', True) else 2
  return step_plan.choose_plan(step_plan.StepTraits(**(traits or {})), **{**settings, **kwargs})


@pytest.mark.parametrize(
  'traits, settings, shape, jit_compile, reason',
  [
    ({}, {}, 'fused', True, 'compiles for CPU'),
    ({}, dict(device_type='GPU'), 'fused', True, 'compiles for GPU'),
    ({}, dict(device_type='TPU'), 'plain', False, 'TPU'),
    ({}, dict(single_trace=False), 'plain', False, 'several replicas on CPUs'),
    ({}, dict(single_trace=False, num_replicas=1), 'plain', False, 'distribution_strategy=one_device'),
    ({}, dict(single_trace=False, enable_xla=True), 'split', True, 'runtime.enable_xla=true'),
    ({}, dict(single_trace=False, device_type='GPU'), 'split', True, 'compiles for GPU'),
    ({}, dict(enable_xla=False), 'plain', False, 'runtime.enable_xla=false'),
    ({}, dict(enable_xla=True), 'fused', True, 'runtime.enable_xla=true'),
    ({}, dict(run_eagerly=True), 'plain', False, 'train_tf_function'),
    ({}, dict(run_eagerly=True, enable_xla=True), 'fused', True, 'runtime.enable_xla=true'),
    (dict(convolutions=True), {}, 'plain', False, 'convolutions'),
    (dict(convolutions=True), dict(enable_xla=True), 'fused', True, 'true, although convolutions'),
    (dict(convolutions=True), dict(enable_xla=True, device_type='GPU'), 'fused', True, 'true'),
    (dict(convolutions=True), dict(device_type='GPU'), 'fused', True, 'GPU'),
    (dict(static_shapes=False), {}, 'plain', False, 'shapes'),
    (dict(static_shapes=False), dict(enable_xla=True), 'fused', True, 'not stacked'),
    (dict(static_shapes=False), dict(device_type='GPU'), 'fused', True, 'first 16 shapes'),
    (dict(static_shapes=False), dict(device_type='GPU', single_trace=False), 'split', True, 'first 16 shapes'),
    (dict(static_shapes=False, xla_error='ragged'), dict(device_type='GPU'), 'plain', False, 'ragged'),
    (dict(xla_error='no kernel'), {}, 'plain', False, 'no kernel'),
    (dict(xla_error='no kernel'), dict(device_type='GPU'), 'plain', False, 'no kernel'),
    (dict(merge_calls=True), dict(single_trace=False, enable_xla=True), 'plain', False, 'batch normalisation'),
    (BFLOAT16, {}, 'fused', True, 'compiles for CPU'),
    (BFLOAT16, dict(enable_xla=True, **FAST), 'fused', True, 'true'),
    (BFLOAT16, dict(device_type='GPU', **FAST), 'fused', True, 'GPU'),
    (BFLOAT16, FAST, 'plain', False, 'bfloat16'),
    (BFLOAT16, dict(**FAST, single_trace=False), 'plain', False, 'bfloat16'),
    (BFLOAT16, dict(fast_products=('float32',)), 'fused', True, 'compiles for CPU'),
    (CLUSTERS, FAST, 'plain', False, 'float32'),
    (CLUSTERS, dict(fast_products=('bfloat16',)), 'fused', True, 'compiles for CPU'),
    (dict(clusters=True), FAST, 'fused', True, 'compiles for CPU'),
    (dict(num_weights=2**20), FAST, 'fused', True, 'compiles for CPU'),  # Layers without clusters.
    (dict(num_updates=2), {}, 'fused', True, 'compiles'),
    (dict(num_other_updates=1), {}, 'fused', True, 'compiles'),
    (dict(num_other_updates=1, merge_calls=True), dict(single_trace=False), 'plain', False, 'owns its updates'),
    (dict(num_updates=2), dict(single_trace=False, enable_xla=True), 'plain', False, 'owns its updates'),
  ],
)
def test_shape(traits, settings, shape, jit_compile, reason):
  plan = choose(traits, **settings)
  assert (plan.execution, plan.jit_compile) == (shape, jit_compile)
  assert reason in plan.reason and reason in str(plan)
  assert plan.manual_optimization == (traits.get('num_updates', 1) != 1 or 'num_other_updates' in traits)
  assert plan.steps_per_execution == 1 or plan.execution == 'fused'
  is_limited = 'static_shapes' in traits and plan.jit_compile and 'enable_xla' not in settings  # True: as ordered.
  assert plan.max_shapes == (16 if is_limited else 0)


@pytest.mark.parametrize(
  'traits, settings, steps',
  [
    ({}, {}, 50),  # The largest divisor of 100 up to 64.
    ({}, dict(steps_per_loop=1000), 50),
    ({}, dict(steps_per_loop=16), 8),  # Two programs a loop.
    ({}, dict(steps_per_loop=17), 5),  # Three programs, and two single steps.
    ({}, dict(steps_per_loop=1021), 63),  # 16 programs, and 13 single steps.
    (dict(in_memory=True), {}, 50),  # Two programs of one length.
    (dict(in_memory=True), dict(steps_per_loop=500), 63),  # Eight, the last of 59.
    (dict(in_memory=True), dict(steps_per_loop=17), 17),
    (dict(in_memory=True, input_bytes=2**30), {}, 50),
    (dict(in_memory=True), dict(device_type='GPU', steps_per_loop=500), 50),
    ({}, dict(steps_per_loop=1), 1),
    ({}, dict(steps_per_execution=7), 7),
    (dict(input_bytes=2**23), {}, 5),  # Eight batches fill 64 MiB.
    (dict(input_bytes=2**23), dict(gradient_accumulation_steps=4), 2),
    (dict(input_bytes=2**30), {}, 1),
    (dict(convolutions=True), dict(enable_xla=True), 1),
    (dict(convolutions=True), dict(enable_xla=True, steps_per_execution=4), 4),
    (dict(static_shapes=False), dict(enable_xla=True, steps_per_execution=4), 1),
    (dict(static_shapes=False), dict(device_type='GPU'), 1),
    ({}, dict(enable_xla=True, run_eagerly=True, steps_per_execution=4), 1),
  ],
)
def test_steps_per_execution(traits, settings, steps):
  plan = choose(traits, **settings)
  assert plan.execution == 'fused' and plan.steps_per_execution == steps
  assert plan.unroll == traits.get('convolutions', False)
  assert plan.gathers == ('in_memory' in traits and 'device_type' not in settings and steps > 1)


def test_the_table_of_the_rule_is_the_rule():
  page = documents.read('docs/contributing/update.md')
  rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in page.splitlines() if line.startswith('|')]
  start = next(number for number, row in enumerate(rows) if row[0] == 'step')
  head, found = rows[start], {row[0]: row[1:] for row in rows[start + 2 : start + 2 + len(STEPS)]}
  assert head[1:] == list(CPUS)
  rule = {}
  for step, traits in STEPS.items():
    plans = []
    for flags in CPUS.values():
      products = device_types.fast_products_of(f'flags : {flags}', {})
      plans.append(str(choose(traits, fast_products=products)))
    rule[step] = [re.search(r'\((no XLA|XLA between products|XLA)', plan)[1] for plan in plans]
  assert found == rule


@pytest.mark.parametrize('enable_xla, device, weights, products, expected', [
  ('auto', 'CPU', 2**20, {'float32'}, True),
  ('auto', 'CPU', 2**20, set(), False),
  ('auto', 'CPU', 2**20 - 1, {'float32'}, False),
  ('auto', 'GPU', 2**20, {'float32'}, False),
  (True, 'CPU', 2**20, {'float32'}, False),
])  # fmt: skip
def test_clusters_are_expected_where_a_plan_may_have_them(enable_xla, device, weights, products, expected):
  settings = dict(enable_xla=enable_xla, device_type=device, fast_products=products)
  assert step_plan.may_have_clusters(weights, **settings) == expected
  assert choose(dict(clusters=True, num_weights=weights), **settings).clusters == expected


def test_convolutions_are_found_inside_functions():
  inner = tf.function(lambda x: tf.nn.conv2d(x, tf.ones([2, 2, 1, 1]), 1, 'SAME'))
  image = tf.TensorSpec([1, 4, 4, 1])
  with_them = tf.function(lambda x: inner(x) + 1).get_concrete_function(image).graph
  without = tf.function(lambda x: x * 2).get_concrete_function(image).graph
  assert step_plan.has_convolutions(with_them) and not step_plan.has_convolutions(without)


@pytest.mark.parametrize(
  'traits, settings, clusters',
  [
    ({}, {}, True),
    ({}, dict(fast_products=()), False),
    (dict(bfloat16_products=False, num_weights=2**20), {}, False),
    (dict(bfloat16_products=False, clusters=True, num_weights=2**20), {}, True),
    (dict(bfloat16_products=True, num_weights=2**20 - 1), {}, False),
    ({}, dict(enable_xla=False), False),  # An order: no XLA at all.
    ({}, dict(enable_xla=True), False),
    ({}, dict(run_eagerly=True), False),
    (dict(convolutions=True), {}, False),
    (dict(static_shapes=False), {}, False),  # Each shape would be compiled.
    (dict(xla_error='no kernel'), {}, True),  # Layers' own parts compile, in any step.
  ],
)
def test_xla_compiles_between_products_if_these_are_faster_outside_of_it(traits, settings, clusters):
  plan = choose(
    dict(**BFLOAT16, **traits) if 'bfloat16_products' not in traits else traits,
    **{**FAST, **settings},
  )
  assert plan.clusters == clusters and ('between products' in str(plan)) == clusters


def test_products_in_bfloat16_are_found_inside_functions_if_they_are_most():
  product = tf.function(lambda x, y: tf.matmul(x, y))
  graph = lambda *dtypes: (
    tf.function(lambda: [product(*2 * [tf.ones([2, 2], dtype)]) for dtype in dtypes]).get_concrete_function().graph
  )
  batched = tf.function(lambda: tf.einsum('bij,bjk->bik', *2 * [tf.ones([2, 2, 2], tf.bfloat16)]))
  assert step_plan.has_bfloat16_products(batched.get_concrete_function().graph)
  assert step_plan.has_bfloat16_products(graph(tf.bfloat16))
  for others in ((), (tf.float32,), (tf.float16,), (tf.float32, tf.bfloat16)):
    assert not step_plan.has_bfloat16_products(graph(*others)), others


def test_unknown_dimensions_have_numbers_when_xla_is_asked():
  specs = {'x': tf.TensorSpec([None, 3]), 'y': [tf.TensorSpec([2], tf.int64)]}
  found = step_plan.static_specs(specs)
  assert found == {'x': tf.TensorSpec([64, 3]), 'y': [tf.TensorSpec([2], tf.int64)]}
  for other in (tf.TensorSpec(None), tf.RaggedTensorSpec([2, None]), tf.SparseTensorSpec([2, 3]), None):
    assert step_plan.static_specs({'x': tf.TensorSpec([2]), 'y': other}) is None


def test_input_traits():
  static = {'x': tf.TensorSpec([2, 3]), 'y': [tf.TensorSpec([2], tf.int64), tf.TensorSpec([2], tf.string)]}
  assert step_plan.input_traits(static) == (True, 2 * 3 * 4 + 2 * 8)
  for varying in (tf.TensorSpec([None, 3]), tf.RaggedTensorSpec([2, None]), tf.SparseTensorSpec([2, 3]), None):
    assert step_plan.input_traits({'x': tf.TensorSpec([2, 3]), 'y': varying}) == (False, 0)
