"""`official-ext prepare`: plans shards of records or images, and writes them in any number of processes. No TensorFlow.

Start with `preparing.py`.
"""
