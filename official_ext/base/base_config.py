"""The base class of Model Garden's configurations, with its types: see model_garden_configs.py.

It has a separate file, so that a language model is loaded without `official.core`. That package imports
tensorflow_datasets and Orbit, and `official.modeling.hyperparams` little more than TensorFlow.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from collections.abc import Mapping, Sequence
  from typing import ClassVar, Self

  from official_ext.base import json_values

  class Config:
    """See `official.modeling.hyperparams.base_config.Config`."""

    RESERVED_ATTR: ClassVar[Sequence[str]]

    def __init__(self, default_params: Mapping[str, object] | None = None, restrictions: Sequence[str] | None = None):
      """Takes values of fields that the class does not declare."""

    def as_dict(self) -> json_values.JsonObject: ...

    def get(self, key: str, value: object = None) -> object: ...

    def lock(self) -> None: ...

    def override(self, override_params: Mapping[str, object], is_strict: bool = True) -> None: ...

    def replace(self, **kwargs: object) -> Self: ...

    def validate(self) -> None: ...

    def __contains__(self, key: str) -> bool: ...
else:
  from official.modeling.hyperparams.base_config import Config as Config
