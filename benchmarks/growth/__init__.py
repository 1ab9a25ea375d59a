"""How cost grows with what: a curve each, drawn for docs/concepts/performance.md: `python -m benchmarks.growth`.

| module | what it knows |
|---|---|
| `curves` | which curves there are, what their axes are; no framework |
| `steps` | steps a second against the size of programs, models, their parts and metrics |
| `resuming` | seconds of a resume against the step |
| `peaks` | memory against batch and accumulation, by processes of benchmarks.memory |
| `commands` | seconds of commands, by separate processes |
| `drawing` | the pictures, by matplotlib |
| `__main__` | the command; `--measure` is the process of one curve |
"""
