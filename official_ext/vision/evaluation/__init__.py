"""Evaluations of Model Garden's vision tasks: figures of each class, and the worst mistakes as pictures.

One module for each kind of task: `image_classes.py`, `boxes.py`, `pixel_classes.py`. Each has `evaluate`.
"""
