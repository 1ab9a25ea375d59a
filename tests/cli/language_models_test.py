"""official-ext generate, chat and convert: compared with transformers on the same folders; terminal output."""

import importlib
import io
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import sys
import threading
import time

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tokenizers

import official_ext as ext
from official_ext.base.files import paths
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import main as cli
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.training.checkpoints import manager
from official_ext.training.config import definitions
from official_ext.training.config import overrides
from official_ext.training.record import run_record

pytest.importorskip('transformers', reason="needs the test extra: pip install 'official-ext[test]'")
from tests import train_processes
from tests.language.modeling import checkpoints

TEMPLATE = (
  '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}'
  '{% if add_generation_prompt %}<|assistant|>{% endif %}'
)
MARKS = ['<|user|>', '<|assistant|>', '<|system|>', '<|end|>']


def random_weights(model, seed):
  for variable in model.trainable_variables:
    variable.assign(tf.random.stateless_normal(variable.shape, [seed, variable.shape.rank], stddev=0.3))
  return model


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with the folders `base`, `adapter`, which names its base as ../base, and `long`, with a long context."""
  place = tmp_path_factory.mktemp('place')
  tokenizer = ext.train_tokenizer(['hello there, äöü'] * 3, 275, MARKS, TEMPLATE, folder=place)
  for name, positions in (('base', 64), ('long', 4096)):
    config = decoder_config.DecoderConfig(
      vocab_size=len(tokenizer), hidden_size=32, intermediate_size=44, num_hidden_layers=2,
      max_position_embeddings=positions,
    )  # fmt: skip
    pretrained.save(random_weights(decoder.LanguageModel(config), 1), str(place / name), tokenizer=tokenizer)
  model = pretrained.load(str(place / 'base'))
  lora.attach(model, lora.LoraConfig(r=2))
  peft_folders.save(random_weights(model, 2), str(place / 'adapter'))
  path = place / 'adapter/adapter_config.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), 'base_model_name_or_path': '../base'}))
  return place


@pytest.fixture
def run(capsys, place, monkeypatch):
  """A function: the arguments of official-ext, and the standard input -> (status, stdout, stderr)."""
  monkeypatch.chdir(place)

  def run(*arguments, stdin=''):
    monkeypatch.setattr('sys.stdin', io.StringIO(stdin))
    capsys.readouterr()  # The output of transformers.
    status = cli.main(arguments)
    return status, *capsys.readouterr()

  return run


def continued(folder, text, count):
  """transformers' continuation of a text."""
  tokenizer = checkpoints.transformers.AutoTokenizer.from_pretrained(folder)
  ids = tokenizer(text, return_tensors='pt')['input_ids']
  tokens = checkpoints.reloaded(folder).generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :]
  return tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.slow
def test_models_and_adapters_of_remote_folders_are_those_of_local_ones(run, place, tmp_path):
  remote = f'ram:/{tmp_path}'
  for name in ('base', 'adapter'):
    for file in paths.files_below(str(place / name)):
      paths.make_folder(f'{remote}/{name}')
      paths.write_atomically(f'{remote}/{name}/{file}', (place / name / file).read_bytes())
  for name in ('base', 'adapter'):  # Whose base is ../base, beside it.
    words = ['--prompt=hello', '--max_new_tokens=5']
    local, found = run('generate', name, *words), run('generate', f'{remote}/{name}', *words)
    assert found[:2] == local[:2] and local[0] == 0, found
  assert run('convert', f'{remote}/adapter', f'{remote}/merged')[0] == 0
  assert run('convert', 'adapter', str(tmp_path / 'merged'))[0] == 0
  name = 'model.safetensors'
  assert paths.read(f'{remote}/merged/{name}') == (tmp_path / 'merged' / name).read_bytes()


@pytest.mark.slow
def test_generate_prints_what_transformers_does_alone_and_a_stream_is_the_same(run, place, train_server, tmp_path):
  expected = continued('base', 'hello there', 12)
  assert len(expected.encode()) > 8
  status, out, err = run('generate', 'base', '--prompt=hello there', '--max_new_tokens=12')
  assert (status, out, err) == (0, expected + '\n', 'stopped after 12 tokens (--max_new_tokens)\n')

  # On a terminal, in pieces: a reader that waits for a busy processor gets some of them at once.
  expected = continued('base', 'hello there', 60)
  main, terminal = pty.openpty()
  pieces = []

  def read():
    while (piece := os.read(main, 1000)) != b'$':
      pieces.append(piece)

  reader = threading.Thread(target=read)
  reader.start()
  process = train_server().start(
    ['generate', str(place / 'base'), '--prompt=hello there', '--max_new_tokens=60'],
    pathlib.Path(os.ttyname(terminal)),
    tmp_path / 'stderr',
    script=pathlib.Path(cli.__file__),
    env=train_processes.UNOPTIMISED,
  )
  assert process.wait(timeout=200) == 0, (tmp_path / 'stderr').read_text()
  time.sleep(0.2)
  os.write(terminal, b'$')
  reader.join(timeout=60)
  assert b''.join(pieces).decode() == expected + '\r\n'
  assert len(pieces) > 3


@pytest.mark.slow
def test_an_adapter_folder_is_its_base_with_the_adapters(run, place):
  status, out, _ = run('convert', 'adapter', 'merged', '--max_shard_size=20KB')
  assert (status, out) == (0, 'Converted adapter to merged: llama, float32\n')
  assert len(list((place / 'merged').glob('*.safetensors'))) > 2
  model = pretrained.load('base')
  peft_folders.load(model, 'adapter')
  ids = np.arange(24).reshape(2, 12)
  logits = checkpoints.logits(checkpoints.reloaded('merged'), ids)
  np.testing.assert_allclose(model(tf.constant(ids)), logits, atol=2e-5)
  assert np.abs(logits - checkpoints.logits(checkpoints.reloaded('base'), ids)).max() > 0.1
  arguments = ('--prompt=hello there', '--max_new_tokens=12')
  status, out, _ = run('generate', 'adapter', *arguments)
  assert status == 0 and out == continued('merged', 'hello there', 12) + '\n'

  status, out, _ = run('convert', 'base', 'half', '--adapter=adapter', '--dtype=bfloat16')
  assert (status, out) == (0, 'Converted base to half: llama, bfloat16\n')
  weights = checkpoints.reloaded('merged').state_dict(), checkpoints.reloaded('half').state_dict()
  rounded = {name: value.to(checkpoints.torch.bfloat16).float() for name, value in weights[0].items()}
  assert all(checkpoints.torch.equal(rounded[name], value) for name, value in weights[1].items())
  assert run('convert', 'half', 'again')[:2] == (0, 'Converted half to again: llama, bfloat16\n')
  again = checkpoints.reloaded('again').state_dict()
  assert all(checkpoints.torch.equal(again[name], value) for name, value in weights[1].items())
  theirs = [checkpoints.transformers.AutoTokenizer.from_pretrained(folder) for folder in ('base', 'again')]
  messages = [{'role': 'user', 'content': 'hello <|end|> ä'}]
  prompts = [
    tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) for tokenizer in theirs
  ]
  assert prompts[0] == prompts[1] and len(prompts[0]) > 5


@pytest.fixture
def second_adapter(place):
  """A second adapter over the same base, of another rank: its folder."""
  if not (place / 'second').exists():
    model = pretrained.load(str(place / 'base'))
    lora.attach(model, lora.LoraConfig(r=3, target_modules=('q_proj', 'up_proj')))
    peft_folders.save(random_weights(model, 3), str(place / 'second'))
  return 'second'


@pytest.mark.slow
def test_several_adapters_on_one_base_are_chosen_by_request(run, place, second_adapter):
  adapters = ('--adapter=adapter', f'--adapter=two={second_adapter}')
  arguments = ('--prompt=hello there', '--max_new_tokens=12')
  alone = {}
  for name, folder in (('adapter', 'adapter'), ('two', second_adapter), ('none', 'base')):
    status, alone[name], err = run('generate', folder, *arguments)
    assert status == 0, err
  assert len(set(alone.values())) == 3
  status, out, err = run('generate', 'base', *adapters, *arguments)
  assert (status, out) == (0, f'[adapter]\n{alone["adapter"]}[two]\n{alone["two"]}'), err
  lines = ['hello', '/clear', '/adapter two', 'hello', '/clear', '/adapter none', 'hello', '/adapter']
  status, out, err = run('chat', 'base', *adapters, '--max_new_tokens=8', stdin='\n'.join(lines))
  assert status == 0, err
  one = [run('chat', name, '--max_new_tokens=8', stdin='hello')[1] for name in ('adapter', second_adapter, 'base')]
  assert out == ''.join(one) and len(set(one)) == 3
  assert 'adapter: two (of adapter, two)\n' in err and err.endswith('adapter: none (of adapter, two)\n')
  status, _, err = run('chat', 'base', *adapters, stdin='/adapter three')
  assert status == 2 and "adapter: 'three' is not loaded; loaded are adapter, two" in err
  status, _, err = run('chat', 'base', '--adapter=adapter', '--adapter=./adapter', stdin='')
  assert status == 2 and 'adapter is the name of adapter; write --adapter=NAME=./adapter' in err
  status, _, err = run('generate', 'adapter', '--adapter=adapter', *arguments)
  assert status == 2 and 'adapter holds adapters; name their base' in err


def test_several_adapters_are_combined_and_merged(run, place, second_adapter, tmp_path):
  peft = pytest.importorskip('peft')
  both = ('--adapter=adapter', f'--adapter={second_adapter}')
  status, _, err = run('convert', 'base', str(tmp_path / 'both'), *both, '--adapter_weights=0.7,-0.3')
  assert status == 0, err
  theirs = peft.PeftModel.from_pretrained(checkpoints.reloaded('base'), 'adapter', adapter_name='one')
  theirs.load_adapter(second_adapter, adapter_name='two')
  theirs.add_weighted_adapter(['one', 'two'], [0.7, -0.3], 'both', combination_type='cat')
  theirs.set_adapter('both')
  ids = np.arange(24).reshape(2, 12)
  logits = checkpoints.logits(theirs.eval(), ids)
  np.testing.assert_allclose(checkpoints.logits(checkpoints.reloaded(str(tmp_path / 'both')), ids), logits, atol=2e-5)
  status, _, err = run('convert', 'base', str(tmp_path / 'x'), *both, '--combination_type=linear')
  assert status == 2 and 'combination_type: linear: ' in err and 'has the ranks 2, 3' in err
  status, _, err = run('convert', 'base', str(tmp_path / 'x'), *both, '--adapter_weights=1')
  assert status == 2 and '--adapter_weights: 1 for 2 --adapter; expected one for each' in err


def test_an_adapter_folder_becomes_a_gguf_file(run, place):
  gguf = pytest.importorskip('gguf', reason="needs the test extra: pip install 'official-ext[test]'")
  status, out, err = run('convert', 'adapter', 'merged.gguf', '--to=gguf', '--dtype=float32')
  assert (status, out) == (0, 'Converted adapter to merged.gguf: llama, float32\n'), err
  reader = gguf.GGUFReader('merged.gguf')
  assert reader.fields['tokenizer.chat_template'].contents() == TEMPLATE
  assert reader.fields['general.name'].contents() == 'adapter'
  model = pretrained.load('base')
  peft_folders.load(model, 'adapter')
  lora.merge(model)
  (found,) = [tensor.data for tensor in reader.tensors if tensor.name == 'blk.1.ffn_up.weight']
  np.testing.assert_allclose(found, model.decoder.blocks[1].mlp.up_proj.kernel.numpy().T, atol=1e-6)
  for target, flags, message in (
    ('merged.gguf', [], 'merged.gguf: exists already; name a file that does not'),
    ('none/merged.gguf', [], 'none/merged.gguf: its folder does not exist; make it first'),
    ('other', ['--to=huggingface', '--dtype=q8_0'], '--dtype=q8_0: no Hugging Face folder has it; set --to=gguf'),
  ):
    status, _, err = run('convert', 'base', target, *(flags or ['--to=gguf']))
    assert status == 2 and message in err, err
  os.remove('merged.gguf')


@pytest.mark.slow
def test_chat_keeps_the_conversation_and_forgets_its_beginning_aloud(run, place):
  messages = ['hello', 'there', 'a message of many words: äöü', '/clear', 'hello']
  status, out, err = run('chat', 'base', '--max_new_tokens=8', stdin='\n\n'.join([*messages, '/exit', 'never']))
  assert status == 0
  answers = out.split('\n')
  assert len(answers) == 5 and answers[4] == '' and answers[0] == answers[3]
  first = '<|user|>hello<|end|><|assistant|>'
  assert answers[0] == continued('base', first, 8)
  assert answers[1] == continued('base', f'{first}{answers[0]}<|end|><|user|>there<|end|><|assistant|>', 8)
  printed = [line for line in err.splitlines() if 'stopped after 8 tokens' not in line]
  assert printed == ['the context of 64 tokens is full: the 4 oldest messages are forgotten']
  assert answers[2] == continued('base', f'<|user|>{messages[2]}<|end|><|assistant|>', 8)

  status, out, err = run('chat', 'base', '--max_new_tokens=8', stdin='x' * 60)
  assert (status, out) == (2, '')
  assert err == (
    'error: the message: 63 tokens and 8 of an answer (--max_new_tokens) are more than the 64 positions of the model '
    '(max_position_embeddings)\n'
  )


def test_a_message_that_is_no_utf_8_is_reported_and_on_a_terminal_ends_nothing(run, place, monkeypatch, capsys):
  def chat(is_interactive):
    stdin = io.TextIOWrapper(io.BytesIO('h\xe4\nhello\n'.encode('latin-1')), 'utf-8')
    monkeypatch.setattr(stdin, 'isatty', lambda: is_interactive, raising=False)
    monkeypatch.setattr('sys.stdin', stdin)
    return cli.main(['chat', 'base', '--max_new_tokens=2']), *capsys.readouterr()

  message = 'error: the message: is not valid UTF-8: half of a surrogate pair at character 1, '
  status, out, err = chat(False)
  assert (status, out, err.count('\n')) == (2, '', 1) and err.startswith(message)
  status, out, err = chat(True)
  assert status == 0 and out == continued('base', '<|user|>hello<|end|><|assistant|>', 2) + '\n' and message in err


CHAT = """
import signal
import sys
from official_ext.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # What a shell starts in the background ignores it.
sys.stdin = open(sys.argv[1])
sys.exit(main.main(['chat', sys.argv[2], '--max_new_tokens=3000']))
"""


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_not_the_conversation(place, start_script, tmp_path):
  os.mkfifo(tmp_path / 'stdin')
  script = start_script(CHAT, [tmp_path / 'stdin', place / 'long'], train_processes.UNOPTIMISED)
  output = script._folder / 'stdout'
  with open(tmp_path / 'stdin', 'w', buffering=1) as lines:
    for count in (1, 2):
      lines.write('hello\n')
      deadline = time.monotonic() + 120
      while not output.exists() or not output.read_text(errors='replace').split('\n')[count - 1]:
        assert time.monotonic() < deadline and script.process.poll() is None
        time.sleep(0.02)
      script.process.send_signal(signal.SIGINT)
      while output.read_text(errors='replace').count('\n') < count:
        assert time.monotonic() < deadline and script.process.poll() is None
        time.sleep(0.02)
  done = script.finish()
  assert done.returncode == 0
  assert done.stderr.count('stopped; the answer so far is kept') == 2 and 'stopped after' not in done.stderr


CONVERT = """
import sys, time
from official_ext.base.files import paths
from official_ext.cli import main
paths.sync_tree = lambda folder: time.sleep(60)  # A slow disk.
sys.exit(main.main(['convert', *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_asked_to_stop_leaves_no_partial_folder(number, place, start_script, tmp_path):
  script = start_script(CONVERT, [place / 'adapter', tmp_path / 'new'])
  deadline = time.monotonic() + 300
  while not list(tmp_path.glob('.new.*.partial/model.safetensors')):
    assert time.monotonic() < deadline and script.process.poll() is None
    time.sleep(0.01)
  script.process.send_signal(number)
  done = script.finish()
  assert done.returncode == 1 and done.stderr.splitlines()[-1] == 'error: interrupted'
  assert not list(tmp_path.iterdir())


BAD = [
  (['generate', 'nowhere', '--prompt=a'], 'nowhere: no such folder'),
  (['generate', 'base'], 'generate: the following arguments are required: --prompt; `official-ext generate --help`'),
  (['generate', 'base', '--prompt=a', '--promt=b'], r'generate: --promt: no such flag; did you mean --prompt\? '),
  (['generate', 'base', '--prompt=a', '--top_k=x'], "generate: argument --top_k: invalid int value: 'x'; "),
  (['generate', 'base', '--prompt=a\udce4'], '--prompt: is not valid UTF-8: half of a surrogate pair at character 1'),
  (
    ['chat', 'base', '--system_prompt=\udce4'],
    '--system_prompt: is not valid UTF-8: half of a surrogate pair at character 0',
  ),
  (['generate', 'base', '--prompt='], '--prompt: is empty'),
  (['generate', 'base', '--prompt=a', '--top_p=0'], '--top_p: 0.0 must be above 0'),
  (['generate', 'base', '--prompt=a', '--top_p=0.5'], '--top_p: changes nothing at temperature 0'),
  (['generate', 'base', f'--prompt={"a" * 64}'], '--prompt: 64 tokens leave no room for more: the model has 64 pos'),
  (['generate', 'base', '--prompt=a', '--max_new_tokens=64'], '--max_new_tokens: 64 behind a prompt of 1 tokens make'),
  (['generate', 'base', '--prompt=a', '--base_model=base'], '--base_model: base is not a folder with adapters'),
  (['generate', 'empty', '--prompt=a'], 'empty: no such folder, or nothing in it'),
  (['generate', 'run', '--prompt=a'], 'run: is the folder of a run; .*: official-ext convert run TARGET'),
  (['generate', 'bare', '--prompt=a'], 'bare: holds no tokenizer.json'),
  (['generate', 'pickled', '--prompt=a'], 'pickled/pytorch_model.bin: a pickle file runs any code'),
  (['generate', 'mamba', '--prompt=a'], "mamba/config.json: no supported architecture 'mamba'; "),
  (['generate', 'lost', '--prompt=a'], 'lost/adapter_config.json: base_model_name_or_path: org/gone: no such folder'),
  (['generate', 'base', '--prompt=a', '--chat_template_path=x'], '--chat_template_path: only --use_chat_template'),
  (['chat', 'speechless'], 'speechless: has no chat template'),
  (['chat', 'base', '--chat_template_path=nowhere'], '--chat_template_path: nowhere: cannot be read: No such file'),
  (['convert', 'base'], 'convert: the following arguments are required: TARGET'),
  (['convert', 'base', ''], 'convert: argument TARGET: is empty; name a folder; `official-ext convert --help`'),
  (['convert', '', 'new'], 'convert: argument SOURCE: is empty'),
  (['generate', '', '--prompt=a'], 'generate: argument FOLDER: is empty'),
  (['chat', 'base', '--base_model='], 'chat: argument --base_model: is empty'),
  (['convert', 'base', 'base/config.json'], 'base/config.json: exists already'),
  (['convert', 'base', 'long'], 'long: exists already; name a folder that does not'),
  (['convert', 'base', 'new', '--max_shard_size=x'], '--max_shard_size=x: expected a size such as 5GB'),
  (['convert', 'base', 'new', '--which=best'], '--which: has no meaning for base, which is not the folder of a run'),
  (['convert', 'base', 'new', '--adapter=long'], 'long: holds no adapter_config.json'),
  (
    ['convert', 'adapter', 'new', '--base_model=adapter'],
    'adapter: holds adapters, not a whole model: merge it first: official-ext convert adapter TARGET',
  ),
  (['convert', 'base', 'new', '--tokenizer=empty'], 'empty: holds no tokenizer.json'),
]


@pytest.fixture(scope='module')
def wrong_folders(place):
  """Folders that lack something, beside the others."""
  for name in ('empty', 'run', 'lost'):
    (place / name).mkdir()
  (place / 'run/params.yaml').write_text('')
  (place / 'lost/adapter_config.json').write_text('{"base_model_name_or_path": "org/gone"}')
  for name in ('bare', 'pickled', 'mamba', 'speechless'):
    shutil.copytree(place / 'base', place / name)
  (place / 'bare/tokenizer.json').unlink()
  (place / 'pickled/model.safetensors').rename(place / 'pickled/pytorch_model.bin')
  config = place / 'mamba/config.json'
  config.write_text(config.read_text().replace('"llama"', '"mamba"'))
  (place / 'speechless/chat_template.jinja').unlink()


@pytest.mark.parametrize('arguments, message', BAD, ids=[' '.join(arguments)[:60] for arguments, _ in BAD])
def test_a_mistake_is_one_line_and_status_2(run, wrong_folders, place, arguments, message):
  status, out, err = run(*arguments)
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert re.match(f'error: {message}', err), err
  assert not (place / 'new').exists() and (place / 'base/config.json').is_file()


def test_an_extra_that_is_not_installed_is_named(run, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  status, _, err = run('chat', 'base')
  assert status == 2 and err.startswith('error: base: needs the package tokenizers: pip install ')


@pytest.mark.parametrize('text, size', [('5GB', 5 * 10**9), ('1.5MB', 1_500_000), ('2GiB', 2 * 2**30), ('300', 300)])
def test_sizes_are_those_of_transformers(text, size):
  assert arguments_lib.size_of(text, '--max_shard_size') == size


def leave_run(folder, registry, **changes):
  """The files of a run: its configuration, its record, a checkpoint; returns the model."""
  module, experiment = importlib.import_module(registry), registry.rpartition('.')[2]
  # Another test of this process may have imported it, and have taken its experiment out again.
  exp_factory._REGISTERED_CONFIGS.setdefault(experiment, getattr(module, experiment))
  params = definitions.upgrade(exp_factory.get_exp_config(experiment))
  overrides.override(params.task, changes)
  os.mkdir(folder)
  run_record.save_params(params.masked_yaml(), folder)
  record = run_record.RunRecord(folder, 'train', params.trainer.train_steps, 0, 'CPU')
  record.update(experiment=experiment, registry=[registry])
  model = random_weights(task_factory.get_task(params.task).build_model(), 3)
  checkpoint = tf.train.Checkpoint(model=model, global_step=tf.Variable(3, dtype=tf.int64))
  manager.CheckpointManager(checkpoint, folder).save(3, check_interval=False)
  return model


def test_the_model_of_a_run_becomes_a_folder(run, place, monkeypatch):
  """Of a checkpoint with the adapters alone."""
  # Other tests of this process look at all experiments that there are.
  monkeypatch.setattr(exp_factory, '_REGISTERED_CONFIGS', dict(exp_factory._REGISTERED_CONFIGS))
  model = leave_run('trained', 'tests.lora_language_model', model_path='base')
  status, out, err = run('convert', 'trained', 'of_run')
  assert status == 0, err
  assert out == 'Converted trained to of_run: llama, float32\n' and 'ckpt-3 (raw weights)' in err
  ids = np.arange(24).reshape(2, 12)
  logits = checkpoints.logits(checkpoints.reloaded('of_run'), ids)
  np.testing.assert_allclose(model(tf.constant(ids)), logits, atol=2e-5)
  assert np.abs(logits - checkpoints.logits(checkpoints.reloaded('base'), ids)).max() > 0.1
  assert run('generate', 'of_run', '--prompt=hello', '--max_new_tokens=1')[0] == 0  # With the tokenizer of its base.
  assert run('convert', 'trained', 'new', '--base_model=base')[0] == 2


@pytest.mark.slow
def test_the_tokenizer_of_a_run_goes_along_with_the_template_that_it_was_trained_with(run, place, tmp_path):
  (tmp_path / 'template').write_text('{% for m in messages %}{{ m.content }}!{% endfor %}')
  sizes = dict(vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
  data = dict(chat_template_path=str(tmp_path / 'template'), cache_dir=str(tmp_path))
  leave_run('new_decoder', 'experiments.sft', model={**sizes, 'num_key_value_heads': 2}, train_data=data)
  status, _, err = run('convert', 'new_decoder', 'with_tokenizer')
  assert status == 0 and 'tokenizer' not in err
  theirs = checkpoints.transformers.AutoTokenizer.from_pretrained('with_tokenizer')
  assert theirs.apply_chat_template([{'role': 'user', 'content': 'hello'}], tokenize=False) == 'hello!'
  assert run('generate', 'with_tokenizer', '--prompt=hello', '--max_new_tokens=1')[0] == 0


def test_a_lack_of_a_tokenizer_and_one_that_is_too_large_are_reported(run, place, wrong_folders):
  status, _, err = run('convert', 'bare', 'still_bare')
  assert status == 0 and err.startswith('no tokenizer went along: ') and err.count('\n') == 1
  large = ext.train_tokenizer(['hello'] * 3, 300, [*MARKS, *(f'<|{n}|>' for n in range(20))], folder=place)
  large.save(str(place / 'large'))
  status, out, err = run('convert', 'base', 'new', '--tokenizer=large')
  assert (status, out) == (2, '') and not (place / 'new').exists()
  assert err.startswith(f'error: --tokenizer=large: has {len(large)} tokens, and the model 275 (vocab_size)')
  (place / 'damaged').mkdir()  # The tokenizer is checked before weights are read.
  shutil.copy(place / 'base/config.json', place / 'damaged')
  (place / 'damaged/model.safetensors').write_bytes(b'damaged')
  status, _, err = run('convert', 'damaged', 'new', '--tokenizer=large')
  assert status == 2 and err.endswith('(vocab_size); without --tokenizer that of damaged is used\n'), err
  fields = json.loads((place / 'base/config.json').read_text())
  qwen2 = {name: value for name, value in fields.items() if name not in ('attention_bias', 'mlp_bias')}
  (place / 'damaged/config.json').write_text(json.dumps({**qwen2, 'model_type': 'qwen2'}))
  (place / 'words').mkdir()
  tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0}, unk_token='a')).save(str(place / 'words/tokenizer.json'))
  status, _, err = run('convert', 'damaged', 'new', '--tokenizer=words')
  assert status == 2 and err.startswith('error: --tokenizer=words: ') and 'the model is WordLevel' in err, err


def test_a_folder_of_a_classifier_is_converted_and_writes_no_text(run, place):
  config = pretrained.load('base').config
  scorer = random_weights(ext.SequenceClassifier(config, 3), 4)
  pretrained.save(scorer, 'scorer_of_three', tokenizer=ext.Tokenizer.load('base'))
  path = place / 'scorer_of_three/config.json'
  names = {'0': 'bad', '1': 'fair', '2': 'good'}
  fields = {'id2label': names, 'label2id': {name: int(number) for number, name in names.items()}}
  path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
  status, out, err = run('convert', 'scorer_of_three', 'half_scorer', '--dtype=bfloat16')
  assert (status, out, err) == (0, 'Converted scorer_of_three to half_scorer: llama, bfloat16\n', '')
  theirs = checkpoints.transformers.AutoModelForSequenceClassification.from_pretrained('half_scorer', dtype='auto')
  assert theirs.config.id2label == {0: 'bad', 1: 'fair', 2: 'good'}
  expected = tf.cast(tf.transpose(scorer.score.kernel), tf.bfloat16)
  np.testing.assert_array_equal(theirs.score.weight.detach().float().numpy(), tf.cast(expected, tf.float32))
  assert checkpoints.transformers.AutoTokenizer.from_pretrained('half_scorer')('hello')['input_ids']
  for command in (['generate', 'half_scorer', '--prompt=a'], ['chat', 'half_scorer']):
    status, out, err = run(*command)
    assert (status, out, err.count('\n')) == (2, '', 1)
    assert '; it is a classifier (LlamaForSequenceClassification), which writes no text: ' in err
  assert run('convert', 'half_scorer', 'new', '--adapter=adapter')[0] == 2 and not (place / 'new').exists()


@pytest.mark.soak
def test_the_classifier_of_a_run_becomes_a_folder_that_is_no_writer(run, place):
  model = leave_run('scorer', 'experiments.reward_model', model_path='base')
  assert lora.adapters(model.decoder)
  status, out, err = run('convert', 'scorer', 'classifier', '--which=latest')
  assert (status, out) == (0, 'Converted scorer to classifier: llama, float32\n'), err
  ids = np.arange(24).reshape(2, 12)
  theirs = checkpoints.transformers.AutoModelForSequenceClassification.from_pretrained('classifier')
  theirs.config.pad_token_id = -1
  assert 'tokenizer' not in err
  scores = theirs(checkpoints.torch.tensor(ids)).logits.detach().numpy()
  np.testing.assert_allclose(model(tf.constant(ids)), scores, atol=2e-5)
  assert np.abs(scores[0] - scores[1]) > 0.01
  assert run('convert', 'scorer', 'new', '--adapter=adapter', '--which=latest')[0] == 2
