"""How much memory a training takes, here and in PyTorch, and the ways to save some of it: `python -m
benchmarks.memory`.

| module | what it knows |
|---|---|
| `subjects` | what is trained and in which ways; no framework |
| `process_memory` | the kernel's figures of this process |
| `xla_plan` | what XLA has planned for a program, and which of its inputs become outputs in place |
| `worker` | the process of one measurement, over `benchmarks.peers.protocol` |
| `ours`, `plain_torch`, `resnet_torch` | the training in each library |
| `__main__` | the command and its table |
"""
