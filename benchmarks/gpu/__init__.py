"""The programs of real training steps, compiled for an H100 on a machine without a GPU.

`programs` lowers them to HLO by TensorFlow, as if its device were a GPU. `compiler` compiles them with the CUDA plugin
of JAX, which needs neither a GPU nor a driver. `roofline` counts kernels, bytes and operations of the result, and
`hlo_checks` finds operations that are slow on a GPU. `replay` runs the same HLO by JAX on a real GPU.

    make gpu-programs                                   # all programs, and whether one has grown
    python -m benchmarks.gpu gpt2_cudnn moe --report    # some, with their longest kernels
    python -m benchmarks.gpu --update                   # the committed table
"""
