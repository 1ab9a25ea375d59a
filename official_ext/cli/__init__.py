"""Commands, flags and printed output.

Start with `main.py`, which names the commands; `flags.py` holds the flags of train.py.

TensorFlow takes seconds to import. The modules data_service, describe, driver_server, exit_status, flags, new,
sweep_check and train import it. The other modules import it in functions, or never: a command that needs no TensorFlow
must start without it.
"""
