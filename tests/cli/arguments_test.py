"""Arguments of commands: folders whose names are not UTF-8."""

import pytest

from official_ext.cli import main as cli

ODD = 'a\udcff'  # The byte 255, as Python reads it from the command line.


@pytest.mark.parametrize(
  'words',
  [
    ['export', ODD],
    ['export', 'run', f'--output_dir={ODD}'],
    ['convert', ODD, 'new'],
    ['convert', 'base', ODD],
    ['convert', 'base', 'new', f'--tokenizer={ODD}'],
    ['generate', ODD, '--prompt=a'],
    ['chat', 'base', f'--base_model={ODD}'],
    ['predict', ODD],
    ['prepare', 'texts.jsonl', ODD],
  ],
  ids=lambda words: ' '.join(words).replace(ODD, 'ODD'),
)
def test_folders_that_libraries_in_c_open_are_utf8(words, capfd, tmp_path, monkeypatch):
  # Before: `export` ended in a UnicodeEncodeError, `prepare` in a TypeError of its writer.
  monkeypatch.chdir(tmp_path)
  assert cli.main(words) == 2
  out, err = capfd.readouterr()
  assert out == '' and err.count('\n') == 1
  assert err.startswith(f'error: {words[0]}: argument ')
  assert ': the folder: a\\udcff: is not UTF-8' in err and 'rename it, or link to it' in err
  assert not list(tmp_path.iterdir())
