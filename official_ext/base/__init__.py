"""The base of all other packages: errors, suggestions of names, YAML, credentials, private parts of TensorFlow.

Start with `errors.py`. `files/` reads and writes files safely, `run_folder/`
defines the files of a run. Nothing here imports another package of the library.
"""
