"""Commands, flags and printed output.

Start with `main.py`, which names the commands; `flags.py` holds the flags of train.py.
"""
