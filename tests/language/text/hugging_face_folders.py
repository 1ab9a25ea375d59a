"""Small tokenizers in Hugging Face's files, trained here, of the kinds that published models have."""

import json

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from official_ext.language.text import python_topics

CHATML = (
  "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _texts():
  return [document['text'] for document in python_topics.documents('validation')] + ['naïve Grüße, 你好, 🎉']


def _trained(backend, special, **options):
  trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False, **options)
  backend.train_from_iterator(_texts(), trainer)
  return backend


def byte_level():
  """As Llama 3 and Qwen have it: bytes, and a token in front of each text."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  special = ['<|begin_of_text|>', '<|end_of_text|>', '<|eot_id|>', '<|im_start|>', '<|im_end|>']
  _trained(backend, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
  begin = '<|begin_of_text|>'
  backend.post_processor = processors.Sequence(
    [
      processors.ByteLevel(trim_offsets=False),
      processors.TemplateProcessing(single=f'{begin} $A', special_tokens=[(begin, backend.token_to_id(begin))]),
    ]
  )
  return backend


def metaspace():
  """As Llama 2 and Gemma have it: a mark for blanks, characters, bytes for those that are not known."""
  backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token='<unk>', fuse_unk=True))
  backend.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
  backend.decoder = decoders.Sequence(
    [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
  )
  _trained(backend, ['<unk>', '<s>', '</s>'] + [f'<0x{byte:02X}>' for byte in range(256)], max_token_length=12)
  content = json.loads(backend.to_str())  # Bytes are not special tokens, but entries of the vocabulary alone.
  content['added_tokens'] = content['added_tokens'][:3]
  backend = tokenizers.Tokenizer.from_str(json.dumps(content))
  backend.post_processor = processors.TemplateProcessing(single='<s> $A', special_tokens=[('<s>', 1)])
  return backend


def write(folder, backend, config, more=()):
  """A folder with tokenizer.json, tokenizer_config.json and other files: (name, text or JSON value)."""
  folder.mkdir(parents=True, exist_ok=True)
  backend.save(str(folder / 'tokenizer.json'))
  for name, content in [('tokenizer_config.json', config), *more]:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding='utf-8')
  return folder


def llama3(folder):
  """Llama 3's files."""
  config = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'bos_token': '<|begin_of_text|>',
    'eos_token': '<|end_of_text|>',
    'chat_template': CHATML,
    'clean_up_tokenization_spaces': False,
  }
  return write(folder, byte_level(), config, [('generation_config.json', {'eos_token_id': [1, 2]})])


def older(folder):
  """Files of before transformers 5: a map of special tokens, some of which tokenizer.json lacks."""
  token = {'content': '</s>', 'lstrip': False, 'normalized': False, 'rstrip': False, 'single_word': False}
  special = {'bos_token': '<s>', 'eos_token': token, 'unk_token': '<unk>', 'pad_token': '<pad>'}
  special['additional_special_tokens'] = ['<|tool|>']
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'model_max_length': 512}
  return write(folder, metaspace(), config, [('special_tokens_map.json', special), ('chat_template.jinja', CHATML)])


def declared(folder):
  """Files of transformers 4: added tokens are in the configuration, with two templates."""
  options = {'lstrip': False, 'rstrip': True, 'normalized': False, 'single_word': False}
  config = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'bos_token': None,
    'eos_token': '<|im_end|>',
    'pad_token': '<|end_of_text|>',
    'added_tokens_decoder': {
      '4': {'content': '<|im_end|>', 'special': True, **options, 'rstrip': False},
      '400': {'content': '<|mask|>', 'special': True, **options},
      '401': {'content': '<tool_call>', 'special': False, **options},
    },
    'chat_template': [
      {'name': 'default', 'template': CHATML},
      {'name': 'tool_use', 'template': '{{ tools | tojson }}' + CHATML},
    ],
  }
  return write(folder, byte_level(), config)


ALL = {'llama3': llama3, 'older': older, 'declared': declared}
