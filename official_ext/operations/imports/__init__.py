"""Import of runs that were logged to TensorBoard.

Start with `run_import.py`.
"""
