"""What experiments share that train a language model on: its folder, adapters, text, a frozen reference, results."""
