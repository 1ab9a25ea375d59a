"""Decoders of language: one model for the families that people use, in and out of Hugging Face's folders.

docs/language_models.md lists the features.
"""
