"""Text data: formats of records, tokenizers, chat templates, packing, token stores.

Start with `text_sources.py`; `tokenizer.py` reads tokenizers as transformers does.
"""
