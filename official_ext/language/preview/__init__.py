"""Examples of text data as a model sees them: `official-ext preview`. Start with `previewing.py`."""
