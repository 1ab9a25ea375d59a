"""Log writers: TensorBoard, events.jsonl, CSV, MLflow, Weights & Biases, progress on the terminal.

Start with `writers.py`.
"""
