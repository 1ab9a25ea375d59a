"""The flags of train.py in words, in the groups of its help."""

# Title -> flag -> (its value, '' for a switch; the text).
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
  'needed first': {
    'experiment': ('NAME', 'the name of a registered experiment; `official-ext list` prints them'),
    'mode': ('MODE', 'train, eval, train_and_eval, continuous_eval, train_and_post_eval or export'),
    'model_dir': ('FOLDER', "the folder for the run's files; the same command resumes the run"),
    'set': (
      'NAME=VALUE',
      'sets one field, by its dotted path (trainer.train_steps=100) or by a short name (learning_rate=1e-3); may be '
      'repeated, applied last; `official-ext describe EXPERIMENT` prints both',
    ),
    'config_file': ('FILE', 'a YAML or JSON file with fields to change; may be repeated, a later one wins'),
  },
  'modules and checkpoints': {
    'registry': ('MODULE', 'a module to import, which registers experiments; may be repeated'),
    'checkpoint': (
      'PATH',
      'the checkpoint to evaluate or to export, or from which a new line of training starts: its path, or that of its '
      'folder',
    ),
    'branch': (
      '',
      'lets training start at --checkpoint although --model_dir holds other checkpoints, which are set aside',
    ),
  },
  'checks': {
    'dry_run': ('', 'runs the whole life of the experiment once, small, in a temporary folder'),
    'debug': ('', 'runs one step eagerly, and names the first operation that is not finite'),
    'debug_step': (
      'N',
      'the step that --debug runs; default: the last one that the run in --model_dir has skipped, else the one after '
      'its newest checkpoint',
    ),
    'profile_steps': (
      'FIRST,LAST',
      'the first and the last step to profile, such as 20,29: a trace for TensorBoard, and a table of their time',
    ),
  },
  'of Model Garden': {
    'params_override': (
      'TEXT',
      'fields to change: trainer.train_steps=100,runtime.seed=1 or YAML or JSON, or a file; applied after '
      '--config_file, before --set',
    ),
    'gin_file': ('FILE', 'a file of gin bindings; may be repeated'),
    'gin_params': ('BINDING', 'a gin binding; may be repeated'),
    'tpu': ('NAME', 'the name or the address (grpc://IP:8470) of a TPU'),
    'tf_data_service': ('ADDRESS', 'the address of a tf.data service'),
  },
  'output': {
    'json': ('', 'prints one JSON document with the result on stdout, errors as JSON and all other output on stderr'),
  },
}
# Flags of absl for messages and for the debugger.
OF_ABSL = ('verbosity', 'pdb_post_mortem', 'stderrthreshold', 'logtostderr', 'alsologtostderr', 'log_dir', 'v')
