"""A server of one model: TensorFlow Serving's REST interface on Starlette.

Read `app.py` first. `served_model.py` holds the model, `batching.py` joins requests that arrive together.
"""
