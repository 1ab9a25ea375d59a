"""TensorFlow's HLO as a module that JAX's compiler for GPUs takes. It runs in .venv-gpu-compiler, and on a GPU.

TensorFlow 2.20 and JAX 0.11 exchange HLO protos, with two differences: the GPU plugin refuses `mhlo.copy`, and two
attributes of custom calls.
"""

import os

os.environ['JAX_SKIP_CUDA_CONSTRAINTS_CHECK'] = '1'
import jax  # noqa: F401  # Registers the plugin.
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jaxlib import _jax

_REFUSED = ('result_tilings', 'xla_shape')


def module_of(proto: bytes):
  """(context, StableHLO module) of a serialized HloModuleProto."""
  context = mlir.make_ir_context()
  with context:
    module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
    copies = []

    def visit(op):
      operation = op.operation
      if operation.name == 'mhlo.copy':
        copies.append(operation)
      if operation.name == 'stablehlo.custom_call':
        for name in _REFUSED:
          if name in op.attributes:
            del op.attributes[name]
      return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
      copy.results[0].replace_all_uses_with(copy.operands[0])
      copy.erase()
  return context, module


def compiled(proto: bytes, device, is_present: bool = False):
  """The executable of a program for a device, which is present or one of a topology."""
  context, module = module_of(proto)
  options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
  client = device.client
  with context:
    return (client.compile_and_load if is_present else client.compile)(module, _jax.DeviceList((device,)), options)
