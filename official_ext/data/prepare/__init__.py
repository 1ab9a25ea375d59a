"""`official-ext prepare`: plans shards of records or images, and writes them in any number of processes.

Start with `preparing.py`. No module here imports TensorFlow.
"""
