"""Import of runs that other trackers have logged: TensorBoard, Weights & Biases, trackio.

Start with `run_import.py`.
"""
