"""Violations of accessibility that axe-core finds on a page (https://github.com/dequelabs/axe-core)."""

import pytest


def violations(page):
  """The serious and critical violations of the present page: rule, element, and the reason of each."""
  sync_playwright = pytest.importorskip(
    'axe_playwright_python.sync_playwright', reason="needs the test extra: pip install 'official-ext[test]'"
  )
  found = sync_playwright.Axe().run(page).response['violations']
  return [
    f'{each["id"]} ({each["impact"]}): {node["html"][:200]}: {node["any"][0]["message"] if node["any"] else ""}'
    for each in found
    if each['impact'] in ('serious', 'critical')
    for node in each['nodes']
  ]
