"""Language models that answer: how one is loaded, continues texts, leads a conversation, or serves the console.

Start with `model_server.py`. Modules import TensorFlow when a model is loaded: errors in flags are reported first.
"""
