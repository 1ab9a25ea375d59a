"""Language models: architecture, text data, fine-tuning.

Start with `modeling/decoder.py`.
"""
