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


@pytest.mark.parametrize(
  'words, lines',
  [
    # Without the value that the misspelt flag should have given: that is not the mistake.
    (['runs', 'list', '--stauts=x'], ['runs list: --stauts: no such flag; did you mean --status? ']),
    (['prepare', '--shardsize=1'], ['prepare: --shardsize: no such flag; did you mean --shard_size? ']),
    (['runs', 'stop', '--nw', '--zzz=1', 'a'], ['runs stop: --nw: ... --now? ', 'runs stop: --zzz: no such flag; `']),
    (['check', 'digits', '--regstry=x'], ['check: --regstry: no such flag; did you mean --registry? ']),
    (['export', 'a', '--format=onx'], ["export: argument --format: invalid choice: 'onx' ... did you mean onnx? "]),
    (['sweep', 'strt'], ['strt: sweep has no such command; did you mean start? ']),
    (['runs', 'lst'], ['lst: runs has no such command; did you mean list? ']),
  ],
)
def test_a_misspelt_word_has_a_suggestion_and_all_flags_are_reported(words, lines, capfd):
  assert cli.main(words) == 2
  out, err = capfd.readouterr()
  assert not out and err.count('\n') == len(lines)
  for line, expected in zip(err.splitlines(), lines):
    start, _, end = expected.partition('...')
    assert line.startswith(f'error: {start}') and end in line, line


def test_a_file_with_a_name_like_a_command_is_a_file(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'strt').write_text('not a sweep')
  assert cli.main(['sweep', 'strt']) == 2
  assert 'no such command' not in capfd.readouterr().err


def test_words_after_two_dashes_are_no_flags(tmp_path, capfd):
  assert cli.main(['runs', 'show', str(tmp_path), '--', '--a']) == 2
  assert 'no such flag' not in capfd.readouterr().err
