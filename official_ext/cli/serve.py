"""official-ext serve: a model of a run, or an export, behind TensorFlow Serving's REST interface."""

from official_ext.base import errors
from official_ext.base import optional_packages
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import listening

_PORT = 8501  # TensorFlow Serving's.


def _parser() -> arguments_lib.Parser:
  found = arguments_lib.Parser(
    'official-ext serve',
    'Answers predictions over HTTP as TensorFlow Serving does: POST /v1/models/NAME:predict. Requests that arrive '
    'together are computed in one batch. SIGTERM ends it after the open requests. docs/how_to/serve.md. It requires '
    "starlette, uvicorn and prometheus_client: pip install 'official-ext[serve]'.",
  )
  kind = arguments_lib.tensorflow_folder
  found.add_argument(
    'folder', metavar='RUN_OR_EXPORT', type=kind, help='the folder of a run, or of an export of any format'
  )
  found.add_argument('--name', metavar='NAME', help="the model's name in addresses; default: that of the run's folder")
  found.add_argument('--port', type=int, default=_PORT, metavar='N', help=f'default: {_PORT}; 0: any that is free')
  found.add_argument(
    '--host',
    default='127.0.0.1',
    metavar='ADDRESS',
    help='default: 127.0.0.1, this machine alone; 0.0.0.0: all interfaces. Requests are not authenticated',
  )
  batch = 'examples that are computed at once, at most; default: 32'
  found.add_argument('--max_batch_size', type=arguments_lib.at_least(1), default=32, metavar='N', help=batch)
  latency = 'how long a request waits for others to join its batch; default: 5'
  found.add_argument('--max_latency_ms', type=float, default=5.0, metavar='MS', help=latency)
  body = 'the largest body of a request, in MB; default: 32'
  found.add_argument('--max_body_mb', type=arguments_lib.at_least(1), default=32, metavar='MB', help=body)
  arguments_lib.add_run_arguments(found)
  return found


def run(arguments: list[str]) -> None:
  """Runs `official-ext serve ARGUMENTS`, until SIGTERM or SIGINT, which end the process."""
  known = _parser().parse_args(arguments)
  listening.check_port(known.port)
  if not 0 <= known.max_latency_ms <= 60_000:
    raise errors.UserError(f'--max_latency_ms={known.max_latency_ms:g}: expected 0 to 60000')
  for package in ('starlette', 'uvicorn', 'prometheus_client'):
    optional_packages.require(package, 'serve', 'serve')
  from official_ext.deployment.server import app  # pylint: disable=g-import-not-at-top  # The extra `serve`.
  from official_ext.deployment.server import process  # pylint: disable=g-import-not-at-top
  from official_ext.deployment.server import served_model  # pylint: disable=g-import-not-at-top

  listener = listening.listen(known.host, known.port)
  ema = known.ema == 'true'
  model = served_model.load(known.folder, known.name, known.which, ema, known.experiment, tuple(known.registry))
  settings = app.Settings(known.max_batch_size, known.max_latency_ms, known.max_body_mb * 10**6)
  port = listener.getsockname()[1]
  print(
    f'{model.name}, version {model.version}: http://{listening.in_url(known.host)}:{port}/v1/models/{model.name}:predict'
  )
  print(f'  {model.runtime}; Ctrl-C or SIGTERM ends it', flush=True)
  process.serve(model, settings, listener)
