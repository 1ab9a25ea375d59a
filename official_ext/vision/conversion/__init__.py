"""Images and annotations of common formats as TFRecord files of tf.Examples.

`input_formats.py` reads the annotations, `converting.py` divides the images into splits and shards, and
`example_rows.py` writes a shard. No module here imports TensorFlow.
"""
