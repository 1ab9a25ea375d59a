"""The code of docs/how_to/lora.md runs from the first line to the last, as the page describes."""

import numpy as np

from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import pretrained
from tests import documents


def test_the_page_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  config = decoder_config.DecoderConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=1)
  pretrained.save(decoder.LanguageModel(config), 'base')
  names = {}
  pieces = documents.code(documents.read('docs/how_to/lora.md'))
  for piece in pieces:
    exec(compile(piece, 'page', 'exec'), names)  # pylint: disable=exec-used
  assert len(pieces) == 6
  assert len(lora.adapters(names['packed'])) == 7
  assert ' parameters; weights ' in capsys.readouterr().out
  assert (tmp_path / 'adapter/adapter_model.safetensors').exists() and (tmp_path / 'merged/config.json').exists()
  assert len(lora.adapters(names['model'])) == 2
  assert np.abs(names['again'] - names['weights']).max() < 0.5
  assert sorted(names['logs']) == ['label', 'z_loss']
