"""Pre-training of GPT-2 (124 million weights) in bfloat16, here and in PyTorch: `python -m benchmarks.gpt2`.

| module | what it knows |
|---|---|
| `sizes` | the network, its arithmetic, what processors can do; no framework |
| `ours`, `plain_torch` | the training in each library |
| `worker` | the process of one measurement, over `benchmarks.peers.protocol` |
| `__main__` | the largest batch that fits, turns, and the table |
"""
