"""The known fields of a file of another program: each is used, changes nothing, or is refused or reported by name.

A field that is read past may change tokens, logits or text without a message. So each format of such a file has one
table, a `FileFields`, and each reader of the format checks a file's fields against it. docs/reference/model_files.md
and docs/how_to/annotations.md show the tables.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import dataclasses
import functools

from official_ext.base import errors
from official_ext.base import json_values


def because(reasons: Mapping[str, str]) -> dict[str, str]:
  """Field -> reason, from the names of the fields by their common reason.

  Args:
    reasons: reason -> names with blanks between them.

  Example:

    >>> because({'a note': 'author version'})
    {'author': 'a note', 'version': 'a note'}
  """
  return {name: reason for reason, names in reasons.items() for name in names.split()}


@dataclasses.dataclass(frozen=True)
class FileFields:
  """The known fields of a format. null counts as missing in each of them.

  Attributes:
    name: of the format, such as 'generation_config.json'.
    used: the fields that are read.
    harmless: field -> why it changes nothing here.
    neutral: field -> its values that change nothing; others are not implemented.
    effect: what another field may change, for messages.
    unknown: what is wrong with a field without an entry, for messages.
    remedy: the end of messages; {} is the name of the field.
    takes_empty: whether false, 0 and empty values count as missing in fields without an entry: the writer writes each
      of its fields, those that are off too.

  Example:

    >>> NOTES = FileFields('notes.json', frozenset({'text'}), {'author': 'a note'}, {'size': (1,)})
    >>> NOTES.lines({'text': 'a', 'author': 'b', 'size': 1}, 'notes.json')
    []
    >>> NOTES.lines({'size': 2, 'colour': 'red'}, 'notes.json')  # doctest: +NORMALIZE_WHITESPACE
    ['notes.json: size: 2 may change the result: only 1 is implemented',
     "notes.json: colour: 'red' may change the result: not known here"]
  """

  name: str
  used: Collection[str]
  harmless: Mapping[str, str] = dataclasses.field(default_factory=dict)
  neutral: Mapping[str, tuple[object, ...]] = dataclasses.field(default_factory=dict)
  effect: str = 'may change the result'
  unknown: str = 'not known here'
  remedy: str = ''
  takes_empty: bool = False

  @functools.cached_property
  def names(self) -> frozenset[str]:
    """All fields of the table."""
    return frozenset({*self.used, *self.harmless, *self.neutral})

  def unknown_names(self, fields: json_values.JsonMapping) -> Iterator[str]:
    """The names of fields without an entry; null and empty values count as missing.

    Example:

      >>> CATEGORY = FileFields('COCO category', ('id', 'name'), {'supercategory': 'groups of classes'})
      >>> list(CATEGORY.unknown_names({'id': 1, 'supercategory': 'animal', 'weight': 2, 'color': None}))
      ['weight']
    """
    for name, value in fields.items():
      if name not in self.names and not (value is None or isinstance(value, (str, list, dict)) and not value):
        yield str(name)

  def lines(self, fields: json_values.JsonMapping, where: str, ignored: Collection[str] = ()) -> list[str]:
    """A message for each field that may change the result and is not read.

    Args:
      fields: the content of a file.
      where: the file, for messages.
      ignored: fields that the caller takes no notice of.
    """
    return list(self._lines(fields, where, ignored))

  def check(
    self,
    fields: json_values.JsonMapping,
    where: str,
    ignored: Collection[str] = (),
    report: Callable[[str], None] | None = None,
  ) -> None:
    """Refuses a file with such a field.

    Args:
      fields: see `lines`, as `where` and `ignored`.
      where: see `lines`.
      ignored: see `lines`.
      report: gets the messages of fields without an entry, which are refused too if it is None.

    Raises:
      UserError: with `lines`, if there are any.
    """
    known = {name: value for name, value in fields.items() if report is None or name in self.names}
    for line in self.lines({name: value for name, value in fields.items() if name not in known}, where, ignored):
      assert report is not None
      report(line)
    found = self.lines(known, where, ignored)
    if found:
      raise errors.UserErrors(found)

  def _lines(self, fields, where, ignored) -> Iterator[str]:
    for name, value in fields.items():
      if value is None or name in ignored or name in self.used or name in self.harmless:
        continue
      if name in self.neutral and any(value == each for each in self.neutral[name]):
        continue
      if name not in self.neutral and self.takes_empty and not value:
        continue
      values = self.neutral.get(name)
      why = f'only {values[0]!r} is implemented' if values else self.unknown
      shown = repr(value)
      shown = shown if len(shown) <= 100 else f'{shown[:97]}...'
      yield f'{where}: {name}: {shown} {self.effect}: {why}{self.remedy.format(name)}'
