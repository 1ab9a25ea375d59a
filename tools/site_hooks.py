"""Hooks of mkdocs (see mkdocs.yml): long names in code may break at their parts, pictures follow theme and width."""

from collections.abc import Iterable
import re
from typing import Any

_INLINE_CODE = re.compile(r'(?<!</span>)<code>([^<]+)</code>')  # A block of code has <span></span> before it.
_HEADING = re.compile(r'(<h[2-4][^>]*>)([\w.]+)(?=<)')  # A name of the API.
_CELL = re.compile(r'<td[^>]*>.*?</td>', re.DOTALL)  # Python-Markdown keeps the backslash of a | in code.
_NUMBER = re.compile(r'(<tr>\s*)<td>(\d+|-)</td>')  # In the first column, which else is as wide as a name.
# After a dot (not before a file's ending), an underscore, a slash and so on; and inside of CamelCase.
_END_OF_A_PART = re.compile(
  r"""((?<=[a-zA-Z0-9)\]])(?:\.(?![a-z]{1,6}(?:$|[ :,]))|[_:](?!_)|[/=,(|]+)(?=[a-zA-Z\['"(_])|[a-z](?=[A-Z][a-z]))"""
)
_BEGINNING_OF_A_FLAG = re.compile(r'--[a-z]+')
_SHORT = 12  # Letters of a name that stays whole.
_PICTURE = re.compile(r'<img alt="([^"]*)" src="([^"]*images/console/[\w-]+)-(?:light|dark)-1280\.png" ?/?>')
_PHONE = '(max-width: 44.9375em)'  # As in docs/site.css.


def on_page_content(html: str, page: Any = None, **_: Any) -> str:
  """Changes the HTML of a page: `trainer.<wbr>steps_<wbr>per_<wbr>loop`, and one <picture> for each theme."""
  if page is not None:
    _shorten(page.toc)
  html = _CELL.sub(lambda found: found[0].replace('\\|', '|'), html)
  html = _NUMBER.sub(r'\1<td class="number">\2</td>', html)
  html = _INLINE_CODE.sub(lambda found: f'<code>{_breakable(found[1])}</code>', html)
  html = _HEADING.sub(lambda found: found[1] + _breakable(found[2]), html)
  return _PICTURE.sub(lambda found: ''.join(_picture(found[1], found[2], theme) for theme in ('light', 'dark')), html)


def _shorten(headings: Iterable[Any], parent: str = '') -> None:
  """Below ext.Task the navigation has .build_model: the column has no room for ext.Task.build_model."""
  for heading in headings:
    name = heading.title
    heading.title = name.removeprefix(parent) if name.startswith(f'{parent}.') else name
    _shorten(heading.children, name)


def _breakable(code: str) -> str:
  if len(code) > _SHORT:
    code = _END_OF_A_PART.sub(r'\1<wbr>', code)
  return _BEGINNING_OF_A_FLAG.sub(r'<span class="whole">\g<0></span>', code)


def _picture(alt: str, name: str, theme: str) -> str:
  return (
    f'<picture class="only-{theme}"><source media="{_PHONE}" srcset="{name}-{theme}-390.png">'
    f'<img alt="{alt}" src="{name}-{theme}-1280.png" loading="lazy"></picture>'
  )
