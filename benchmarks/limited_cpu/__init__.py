"""An older processor, for measurements and tests: `python -m benchmarks.limited_cpu avx2 COMMAND ...`."""
