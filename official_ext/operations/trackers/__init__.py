"""Export of finished runs to MLflow, Weights & Biases and CSV.

Start with `export.py`.
"""
