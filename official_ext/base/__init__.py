"""The base of all other packages: errors, suggestions of names, YAML, credentials, private parts of TensorFlow.

Start with `errors.py`. `files/` reads and writes files safely, `run_folder/` defines the files of a run. Nothing here
imports another package of the library.

TensorFlow or Model Garden is imported by base_config, model_garden_configs, model_garden_internals, tf_internals,
tracebacks, files/storage and files/whole_folders. The other modules must not import them at the top: commands that need
no TensorFlow import these modules.
"""

__version__ = '0.2.0'  # Of the library: here for modules that official_ext/__init__.py imports.
