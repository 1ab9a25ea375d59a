"""Settings of a preparation: values that go to other processes and machines as JSON. No TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Protocol

from official_ext.base import json_types
from official_ext.data import numbered_records
from official_ext.data.prepare import pieces as pieces_lib


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of the output.

  Attributes:
    split: which part of a folder with several.
    shard_bytes: the approximate size of the input of a shard.
    on_bad_example: 'error' or 'skip'.
  """

  split: str = ''
  shard_bytes: int = 64 * 10**6
  on_bad_example: str = 'error'


class Outputs(Protocol):
  """Files that a preparation writes beside its shards.

  Attributes:
    config_name: the file for `--config_file` that `results` writes.
    files: the files written before the shards, by their path below the prepared folder.
  """

  config_name: str

  @property
  def files(self) -> Mapping[str, bytes]: ...

  def results(
    self, folder: str, settings: json_types.JsonMapping, notes: Sequence[json_types.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The files written after all shards, by name: one of them is `config_name`, for training on the folder.

    Args:
      folder: the absolute path of the prepared folder.
      settings: with which it was prepared.
      notes: of the shards, in order.
    """


class RowFormat(Outputs, Protocol):
  """Makes other rows of records than the records themselves, such as rows of tokens.

  Attributes:
    kind: the name of such folders in their manifest.
    module: the dotted name of a module with a function `rows(job, records, leaves_out, report)`, which yields the rows
      of a shard as bytes. Every process that writes shards imports it.
    settings: its settings, as JSON values by name.
  """

  kind: str
  module: str

  @property
  def settings(self) -> json_types.JsonMapping: ...

  def resolve(
    self,
    pieces: Sequence[pieces_lib.Piece],
    leaves_out: bool,
    open_first: Callable[[pieces_lib.Piece], numbered_records.Records],
  ) -> tuple[tuple[str, ...], json_types.JsonObject]:
    """(columns of the first record, settings that depend on it), once for all shards.

    Args:
      pieces: all input.
      leaves_out: whether bad records are left out.
      open_first: opens the beginning of a piece as `numbered_records.Records`.

    Raises:
      UserError: there is no record that fits.
    """
