"""official-ext prepare --for=text_classification|tagging|question_answering: output, flags, the printed command."""

import shlex

import pytest

from tests.data.prepare import prepared_inputs
from tests.language.text import annotated

# An encoder of 2 layers: the experiments' own has 12.
SMALL = [
  f'--set=task.model.encoder.bert.{name}={value}'
  for name, value in (
    ('num_layers', 2),
    ('hidden_size', 16),
    ('num_attention_heads', 2),
    ('intermediate_size', 16),
    ('max_position_embeddings', 64),
  )
]
FEW_STEPS = [
  f'--set=trainer.{name}=2'
  for name in ('train_steps', 'steps_per_loop', 'summary_interval', 'validation_interval', 'checkpoint_interval')
]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
  """See `prepared_inputs.command`."""
  annotated.write_vocabulary(tmp_path / 'vocab.txt')
  return prepared_inputs.command(capsys, tmp_path, monkeypatch)


def write(target, folder):
  """INPUT for a target, below a folder; returns its name."""
  if target == 'text_classification':
    rows = [{'text': text, 'label': label} for text, label in annotated.winners(60)]
    prepared_inputs.write_lines(folder / 'in.jsonl', rows)
  elif target == 'tagging':
    rows = [
      {'tokens': text.split(), 'tags': ['B-WIN' if word == label else 'O' for word in text.split()]}
      for text, label in annotated.winners(60)
    ]
    prepared_inputs.write_lines(folder / 'in.jsonl', rows)
  else:
    (folder / 'in.json').write_text(annotated.squad(annotated.questions(60)))
    return 'in.json'
  return 'in.jsonl'


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_output_and_the_printed_command(run, tmp_path):
  rows = [{'text': text, 'label': label} for text, label in annotated.winners(40)]
  prepared_inputs.write_lines(tmp_path / 'in.jsonl', [*rows, {'text': '', 'label': 'red'}])
  words = ['in.jsonl', 'my texts', '--for=text_classification', '--vocab_file=vocab.txt', '--seq_length=16']
  status, out, err = run(*words, '--workers=1', '--validation_share=0.3')
  assert (status, err) == (0, '')
  counts = [len(annotated.examples(tmp_path / 'my texts', split)) for split in ('train', 'validation')]
  size = sum(path.stat().st_size for path in (tmp_path / 'my texts').glob('*.tfrecord'))
  assert sum(counts) == 40 and counts[1] > 0
  lines = [line for line in out.splitlines() if 'shards' not in line or 'bytes' in line]
  assert [line for line in lines if 'are in several splits' not in line] == [
    f'warning: {tmp_path}/in.jsonl, line 41: dropped: a text is empty',
    'balance: in.jsonl: 41 examples found, 40 used; left out: 1 a text is empty',
    f'my texts: 40 examples ({counts[0]} train, {counts[1]} validation), {size} bytes in 2 shards',
    'To train on them, from a checkpoint of BERT with this vocabulary:',
    f"  official-ext train --experiment=bert/sentence_prediction '--config_file={tmp_path}/my texts/experiment.yaml' "
    "--mode=train_and_eval '--model_dir=runs/my texts' --set=task.init_checkpoint=CHECKPOINT",
  ]
  status, out, _ = run(*words, '--validation_share=0.3')
  assert status == 0 and 'in 2 shards, 2 of which existed' in out


@pytest.mark.parametrize('target', ['text_classification', 'tagging', 'question_answering'])
@pytest.mark.slow
def test_the_printed_command_trains_and_evaluates(target, run, run_train, tmp_path):
  name = write(target, tmp_path)
  words = [f'--for={target}', '--vocab_file=vocab.txt', '--seq_length=32', '--validation_share=0.3']
  status, out, err = run(name, 'out', *words, *(['--query_length=8'] if target == 'question_answering' else []))
  assert status == 0, err
  program, command, *flags = shlex.split(out.splitlines()[-1])
  assert (program, command) == ('official-ext', 'train') and flags.pop() == '--set=task.init_checkpoint=CHECKPOINT'
  done = run_train([*flags, *SMALL, *FEW_STEPS], cwd=tmp_path, timeout=600)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (tmp_path / 'runs' / 'out' / 'best_ckpt').is_dir()
  metric = {'text_classification': 'cls_accuracy', 'tagging': 'f1', 'question_answering': 'final_f1'}[target]
  assert f'{metric} ' in done.stdout


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    ([], '--vocab_file: --for=text_classification requires the vocab.txt of a BERT checkpoint'),
    (['--vocab_file=no.txt'], '--vocab_file: no.txt: cannot be read: No such file or directory'),
    (['--vocab_file=vocab.txt', '--quality=90'], '--quality: has no meaning for --for=text_classification'),
    (['--vocab_file=vocab.txt', '--seq_length=3'], '--seq_length: 3: expected 4 or more'),
    (['--vocab_file=vocab.txt', '--text_fields=a,b,c'], 'a,b,c: expected one or two names of columns'),
    (['--vocab_file=vocab.txt', '--text_fields=no'], 'holds no example for --for=text_classification; for example'),
    (['--vocab_file=vocab.txt', '--packing=wrapped'], '--packing: says how texts become rows of tokens'),
    (['--vocab_file=vocab.txt', '--test_share=0.95'], 'the shares must sum to less than 1'),
  ],
)
def test_mistakes_are_one_line(words, expected, run, tmp_path):
  write('text_classification', tmp_path)
  status, _, err = run('in.jsonl', 'out', '--for=text_classification', *words)
  assert status == 2
  assert err.count('\n') == 1 and expected in err and err.startswith('error: ')
  assert not (tmp_path / 'out').exists()


def test_flags_of_texts_are_refused_for_images(run, tmp_path):
  (tmp_path / 'in').mkdir()
  status, _, err = run('in', 'out', '--for=image_classification', '--vocab_file=vocab.txt')
  assert (status, err) == (2, 'error: --vocab_file: has no meaning for --for=image_classification\n')
