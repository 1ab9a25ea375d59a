"""One run for its page: curves, log, configuration, checkpoints, and what can be done with it."""

from starlette import routing

from official_ext.console import context as context_lib


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  del context
  return []
