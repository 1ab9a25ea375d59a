"""Types of values that are read from JSON and YAML, and written to them."""

from collections.abc import Mapping
from typing import Any

# A value as `json.loads` returns it. Its shape is not known to a type checker: who reads it checks it.
Json = Any
# A mapping from names to such values.
JsonObject = dict[str, Json]
# The same, only read.
JsonMapping = Mapping[str, Json]
