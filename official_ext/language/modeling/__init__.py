"""Decoders of language: one model for the families that people use, in and out of Hugging Face's folders.

docs/how_to/language_models.md lists the features.
"""
