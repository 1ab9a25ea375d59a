"""The web application and its process: TensorFlow Serving's REST interface for one model, health, metrics.

The process listens, and ends after its open requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import time
import types

import prometheus_client
from starlette import applications
from starlette import requests
from starlette import responses
from starlette import routing
import uvicorn

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.deployment.server import batching
from official_ext.deployment.server import served_model
from official_ext.deployment.server import tensor_json

Handler = Callable[[requests.Request], Awaitable[responses.Response]]

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

# A body that is too large is read on and dropped: a client that still sends would get no answer but a broken pipe.
_MOST_IGNORED = 64 << 20


@dataclasses.dataclass(frozen=True)
class Settings:
  """The limits of a server.

  Attributes:
    max_batch_size: examples of one computation.
    max_latency_ms: time for which a request waits for others to join its batch.
    max_body_bytes: of a request.
    max_waiting: requests that may wait; further ones are answered with 503.
  """

  max_batch_size: int = 32
  max_latency_ms: float = 5.0
  max_body_bytes: int = 32 << 20
  max_waiting: int = 1000


class _UnknownModelError(errors.UserError):
  """A request names another model."""


class _TooLargeError(Exception):
  """The body of a request is too large."""


class _Metrics:
  """The numbers that a server reports."""

  def __init__(self) -> None:
    self.registry = registry = prometheus_client.CollectorRegistry()
    counter, histogram = prometheus_client.Counter, prometheus_client.Histogram
    self.requests = counter(
      'official_ext_requests', 'Requests for predictions, by HTTP status.', ['status'], registry=registry
    )
    self.seconds = histogram(
      'official_ext_request_seconds', 'Time from a request to its answer.', buckets=_SECONDS, registry=registry
    )
    self.batches = histogram(
      'official_ext_batch_size', 'Examples of a computation.', buckets=_BATCH_SIZES, registry=registry
    )


class _Application:
  """The handlers."""

  def __init__(self, model: served_model.ServedModel, settings: Settings):
    self._model, self._settings = model, settings
    self._metrics = _Metrics()
    rows = None if model.apart else [name for name, spec in model.outputs.items() if spec.has_batch]
    is_single = model.takes_single_examples
    self._batcher = batching.Batcher(
      batching.one_by_one(model.compute, rows) if is_single else model.compute,
      rows,
      settings.max_batch_size,
      settings.max_latency_ms / 1000,
      settings.max_waiting,
      self._metrics.batches.observe,
      lambda reason: print(f'each request is computed by itself: {reason}', flush=True),
      is_checked=is_single,
      rounding=model.rounding,
    )

  @contextlib.asynccontextmanager
  async def lifespan(self, app: object) -> AsyncIterator[None]:
    """Computes batches while the server runs."""
    del app
    work = asyncio.create_task(self._batcher.run())
    try:
      yield
    finally:
      work.cancel()

  async def health(self, request: requests.Request) -> responses.Response:
    """200 as soon as the model is loaded, which it is before the server listens."""
    del request
    return responses.JSONResponse({'status': 'ok'})

  async def measured(self, request: requests.Request) -> responses.Response:
    """The metrics."""
    del request
    return responses.Response(
      prometheus_client.generate_latest(self._metrics.registry),
      headers={'content-type': prometheus_client.CONTENT_TYPE_LATEST},
    )

  async def status(self, request: requests.Request) -> responses.Response:
    """The version, in the form of TensorFlow Serving."""
    self._check_name(request)
    status = {'error_code': 'OK', 'error_message': ''}
    version = {'version': str(self._model.version), 'state': 'AVAILABLE', 'status': status}
    return responses.JSONResponse({'model_version_status': [version]})

  async def metadata(self, request: requests.Request) -> responses.Response:
    """The signature. TensorFlow Serving answers in another form, a protocol buffer of graphs."""
    self._check_name(request)
    model = self._model
    specs = {
      part: [dataclasses.asdict(spec) for spec in found.values()]
      for part, found in (('inputs', model.inputs), ('outputs', model.outputs))
    }
    return responses.JSONResponse({'name': model.name, 'runtime': model.runtime, **specs})

  async def predict(self, request: requests.Request) -> responses.Response:
    """Predictions for examples."""
    begun = time.perf_counter()
    status = 500
    try:
      response = await self._predicted(request)
      status = response.status_code
      return response
    finally:
      self._metrics.requests.labels(str(status)).inc()
      self._metrics.seconds.observe(time.perf_counter() - begun)

  async def _predicted(self, request: requests.Request) -> responses.Response:
    try:
      self._check_name(request)
      arrays, has_instances = tensor_json.decode(await self._body(request), self._model.inputs)
      answer = await (self._predictions(arrays) if has_instances else self._outputs(arrays))
      return responses.Response(tensor_json.dump(answer), media_type='application/json')
    except _UnknownModelError as error:
      return _error(404, str(error))
    except _TooLargeError as error:
      return _error(413, str(error))
    except batching.OverloadedError as error:
      return _error(503, str(error))
    except errors.UserError as error:
      return _error(400, errors.lines_of(error)[0])

  async def _outputs(self, arrays: batching.Arrays) -> json_values.JsonObject:
    """The answer to `inputs`: whole tensors."""
    return tensor_json.encode(await self._batcher.predict(arrays), has_instances=False)

  async def _predictions(self, arrays: batching.Arrays) -> json_values.JsonObject:
    """The answer to `instances`: an entry for each example.

    If the signature does not show whether an output has a row for each example, each example is computed alone.
    """
    tensor_json.check_rows(self._model.outputs)
    number = len(next(iter(arrays.values())))
    is_single = self._model.takes_single_examples
    has_fixed_batch = not self._model.takes_batches and not is_single
    has_rows = all(spec.has_batch for spec in self._model.outputs.values())
    if has_fixed_batch or (has_rows and not (is_single and self._model.apart)):
      parts = [arrays]
    else:
      parts = [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(number)]
    predictions = []
    for part in parts:
      outputs = await self._batcher.predict(part)
      found = {name: tensor_json.rows(name, array, number // len(parts)) for name, array in outputs.items()}
      predictions += tensor_json.encode(found, has_instances=True)['predictions']
    return {'predictions': predictions}

  async def _body(self, request: requests.Request) -> json_values.Json:
    most = self._settings.max_body_bytes
    message = f'request: its body has more than {most} bytes; send fewer examples, or raise --max_body_mb'
    content, num_bytes = bytearray(), 0
    async for chunk in request.stream():
      num_bytes += len(chunk)
      if num_bytes <= most:
        content += chunk
      elif num_bytes > most + _MOST_IGNORED:
        break
    if num_bytes > most:
      raise _TooLargeError(message)
    try:
      return json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
      raise errors.UserError(f'request: its body is invalid JSON: {" ".join(str(error).split())[:200]}') from None

  def _check_name(self, request: requests.Request) -> None:
    name, version = request.path_params['name'], request.path_params.get('version', self._model.version)
    if name != self._model.name or version != self._model.version:
      raise _UnknownModelError(
        f'{name}: this server has the model {self._model.name}, version {self._model.version}: '
        f'/v1/models/{self._model.name}:predict'
      )


def make_app(model: served_model.ServedModel, settings: Settings) -> applications.Starlette:
  """The application of a server.

  Args:
    model: to serve.
    settings: its limits.
  """
  server = _Application(model, settings)
  models = '/v1/models/{name}'
  return applications.Starlette(
    routes=[
      routing.Route('/healthz', server.health, methods=['GET']),
      routing.Route('/metrics', server.measured, methods=['GET']),
      *(
        routing.Route(f'{path}:predict', server.predict, methods=['POST'])
        for path in (models, f'{models}/versions/{{version:int}}')
      ),
      routing.Route(f'{models}/metadata', _handled(server.metadata), methods=['GET']),
      *(
        routing.Route(path, _handled(server.status), methods=['GET'])
        for path in (models, f'{models}/versions/{{version:int}}')
      ),
    ],
    exception_handlers={404: _unknown, 405: _unknown},
    lifespan=server.lifespan,
  )


def _handled(handler: Handler) -> Handler:
  async def answer(request: requests.Request) -> responses.Response:
    try:
      return await handler(request)
    except _UnknownModelError as error:
      return _error(404, str(error))

  return answer


async def _unknown(request: requests.Request, error: Exception) -> responses.Response:
  path = re.sub(r'[^\x20-\x7e]', '?', request.url.path)[:200]
  return _error(
    getattr(error, 'status_code', 404),
    f'{request.method} {path}: unknown; there are POST /v1/models/NAME:predict and GET /v1/models/NAME, /healthz, '
    '/metrics',
  )


def _error(status: int, message: str) -> responses.Response:
  """An error as TensorFlow Serving writes it."""
  return responses.JSONResponse({'error': message}, status)


_GRACE_SECONDS = 10


class _UvicornServer(uvicorn.Server):
  """A server that a signal ends with exit status 0."""

  def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
    """Overrides the base class, which raises the signal again. A second signal does not wait for open requests."""
    del sig, frame
    self.force_exit, self.should_exit = self.should_exit, True


def serve(model: served_model.ServedModel, settings: Settings, listener: socket.socket) -> None:
  """Serves until SIGTERM or SIGINT, and ends the process."""
  config = uvicorn.Config(
    make_app(model, settings),
    log_level='error',
    access_log=False,
    server_header=False,
    timeout_graceful_shutdown=_GRACE_SECONDS,
  )
  _UvicornServer(config).run([listener])
  sys.stdout.flush()
  os._exit(0)  # Some runtimes crash when Python unloads them.
