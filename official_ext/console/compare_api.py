"""Several runs for one page: what differs, and their curves."""

from starlette import routing

from official_ext.console import context as context_lib


def routes(context: context_lib.Context) -> list[routing.Route]:
  """The requests that this part answers."""
  del context
  return []
