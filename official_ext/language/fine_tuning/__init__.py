"""The common part of fine-tuning experiments: its folder, adapters, text, a frozen reference, results."""
