"""Evaluations of Model Garden's tasks on texts. `text_classes.py` has the one of classification."""
