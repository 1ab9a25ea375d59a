"""The same work in this library and in others, timed in turns: `python -m benchmarks.peers`, or `make bench`.

| module | what it knows |
|---|---|
| `work/` | what is computed: data, first weights, shapes, as NumPy arrays; no framework |
| `runners/` | how a framework computes it: one module for each peer |
| `starts/` | programs that are started anew, and say how far they have come |
| `entries` | what a peer, a workload and a goal are |
| `training_workloads`, `other_workloads`, `catalogue` | which peers run which workload, and how; the goals |
| `environments` | which Python a peer needs, and how it is installed if it is missing |
| `protocol`, `worker` | the process of one measurement: 'ready', then an amount on request, then its seconds |
| `process` | the other end of it |
| `rounds`, `checks` | A B A B; ratios of each round; whether both do the same work |
| `conductor` | ours beside one peer after the other; one that fails is reported, and the others continue |
| `report`, `machine` | tables, goals that are met, and what they were measured on |
| `results` | RESULTS.md: the goals; results/KIND.md: a section for each workload, kept until that is measured again |
| `__main__` | the command |

Only `runners/` import frameworks, so that each process has its own alone.
"""
