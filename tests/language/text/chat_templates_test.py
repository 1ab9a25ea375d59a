"""Chat templates: the text that transformers makes of them, in a sandbox; errors are one line."""

import datetime
import importlib.util
import json
import os
import pathlib

import pytest

from official_ext.base import errors
from official_ext.language.text import chat_templates

os.environ['HF_HUB_OFFLINE'] = '1'
from transformers.utils import chat_template_utils

# The templates of published models, as TRL has them.
_FOLDER = pathlib.Path(importlib.util.find_spec('trl').submodule_search_locations[0]) / 'chat_templates'
PUBLISHED = {path.stem: path.read_text() for path in sorted(_FOLDER.glob('*.jinja'))}
PUBLISHED['mistral'] = """{{ bos_token }}{% set ns = namespace(index=0) %}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (ns.index % 2 == 0) and message['role'] in ['user', 'assistant'] %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and loop.last %}
            {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + (system + '\n\n' if system and loop.last else '') + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS]' + message['content'] | string + '[/TOOL_RESULTS]' }}{% continue %}
    {%- else %}{% generation %}{{ ' ' + message['content'] | trim + eos_token }}{% endgeneration %}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}"""

TOKENS = {'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}
USER = {'role': 'user', 'content': 'How <b>warm</b> is it in "München" & Zürich? 🎉 '}
ANSWER = {'role': 'assistant', 'content': ' 21 °C.\n'}
CALL = {'type': 'function', 'id': 'abcdefghi', 'function': {'name': 'warmth', 'arguments': {'city': 'München', 'n': 1}}}
CHATS = {
  'question': [USER],
  'two questions': [USER, ANSWER, {'role': 'user', 'content': 'And "now"?'}],
  'answered': [USER, ANSWER, {'role': 'user', 'content': 'And now?'}, {'role': 'assistant', 'content': 'Warmer.'}],
  'system': [{'role': 'system', 'content': 'Be brief.'}, USER, ANSWER],
  'reasoning': [USER, {**ANSWER, 'reasoning_content': 'It is summer.'}, {'role': 'user', 'content': 'Sure?'}],
  'thinking': [USER, {**ANSWER, 'thinking': 'It is summer.'}],
  'call': [
    USER,
    {'role': 'assistant', 'content': '', 'tool_calls': [CALL]},
    {'role': 'tool', 'name': 'warmth', 'tool_call_id': 'abcdefghi', 'content': '{"celsius": 21}'},
    ANSWER,
  ],
  'nothing said': [USER, {'role': 'assistant', 'content': None, 'tool_calls': [CALL]}],
  'roles out of order': [ANSWER, USER, USER],
  'unknown role': [{'role': 'nobody', 'content': 'x'}],
}
TOOLS = [
  {
    'type': 'function',
    'function': {
      'name': 'warmth',
      'description': "Today's <warmth> & ü",
      'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']},
      'return': {'type': 'number'},
    },
  }
]


def theirs(source, messages, adds, tools, **more):
  """The result of transformers, or its failure."""
  messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
  try:
    texts, spans = chat_template_utils.render_jinja_template(
      [messages],
      tools,
      chat_template=source,
      add_generation_prompt=adds,
      return_assistant_tokens_mask='{% generation %}' in source or '{%- generation' in source,
      **TOKENS,
      **more,
    )
  except Exception as error:  # pylint: disable=broad-except
    return f'fails: {type(error).__name__}'
  return texts[0], [tuple(span) for span in (spans[0] if spans else [])]


def ours(source, messages, adds, tools, **more):
  template = chat_templates.ChatTemplate(source, 'folder')
  try:
    text, spans = template.render_with_spans(messages, adds, tools, **TOKENS, **more)
  except errors.UserError as error:
    assert str(error).startswith('folder: the chat template ') and '\n' not in str(error)
    return 'fails: ' + type(error.__cause__).__name__
  return text, spans if template.marks_generation else []


def with_texts(messages):
  """The same with the arguments of calls as JSON texts."""
  text = json.dumps(CALL['function']['arguments'], ensure_ascii=False)
  call = {**CALL, 'function': {**CALL['function'], 'arguments': text}}
  return [{**message, **({'tool_calls': [call]} if 'tool_calls' in message else {})} for message in messages]


FAST = {'llama3', 'llama3_1', 'llama3_2', 'llama3_training', 'qwen2_5', 'qwen2_5_training', 'qwen3', 'gemma', 'gemma3'}
FAST |= {'gemma_training', 'mistral', 'phi3_5', 'cohere2', 'deepseekv3', 'glm4moe_training'}


@pytest.mark.parametrize('name', [pytest.param(n, marks=[] if n in FAST else pytest.mark.soak) for n in PUBLISHED])
def test_text_and_marks_are_those_of_transformers(name):
  source, rendered = PUBLISHED[name], 0
  for chat in CHATS.values():
    for adds in (False, True):
      for tools in (None, TOOLS):
        expected = theirs(source, chat, adds, tools)
        if expected == 'fails: TypeError':  # Of a template that knows arguments as texts alone.
          expected = theirs(source, with_texts(chat), adds, tools)
        assert ours(source, chat, adds, tools) == ours(source, with_texts(chat), adds, tools) == expected
        rendered += not isinstance(expected, str)
  assert rendered >= 4
  if name.endswith('_training'):
    assert chat_templates.ChatTemplate(source, 'folder').marks_generation


def test_the_published_templates_are_there():
  assert set(PUBLISHED) >= FAST
  assert len(PUBLISHED) > 40


def test_variables_reach_the_template():
  for enabled in (True, False):
    chat, more = CHATS['question'], {'enable_thinking': enabled}
    assert ours(PUBLISHED['qwen3'], chat, True, None, **more) == theirs(PUBLISHED['qwen3'], chat, True, None, **more)
  assert '</think>' in ours(PUBLISHED['qwen3'], CHATS['question'], True, None, enable_thinking=False)[0]


def test_the_date_is_that_of_today():
  text, _ = ours("{{ strftime_now('%d %b %Y') }}", CHATS['question'], False, None)
  today = datetime.datetime.now()
  assert text in [(today - datetime.timedelta(days=days)).strftime('%d %b %Y') for days in (0, 1)]


def refused(source, messages=None, **more):
  with pytest.raises(errors.UserError) as error:
    chat_templates.ChatTemplate(source, 'folder').render(messages or CHATS['question'], **more)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_a_template_that_raises_is_reported_with_its_message():
  message = refused(PUBLISHED['mistral'], CHATS['roles out of order'])
  reason = 'Conversation roles must alternate user/assistant/user/assistant/...'
  assert message == f'folder: the chat template refuses the messages: {reason}'


@pytest.mark.parametrize(
  'source',
  [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append({'role': 'user'}) }}",
    '{% set n = namespace(__class__=1) %}',
    '{% set n = namespace() %}{% set n.__init__ = 1 %}',
    '{{ dict.__base__.__subclasses__() }}',
    '{{ tojson.__globals__ }}{{ raise_exception.__globals__.os }}',
    '{{ extra.secret() }}',
    '{{ range(10000000) | list }}',
  ],
)
def test_a_template_reaches_nothing_of_python(source):
  class Extra:
    def secret(self):
      raise AssertionError('it was called')

  message = refused(source, extra=Extra())
  assert message.startswith('folder: the chat template ')


def test_no_jinja_is_reported_with_its_line():
  with pytest.raises(errors.UserError, match=r'^folder: line 2 of the chat template: Expected an expression'):
    chat_templates.ChatTemplate('a\n{% if %}', 'folder')


def test_messages_of_another_form_are_reported():
  message = refused('{{ messages }}', ['hi'])
  assert message == "folder: a message is not a dictionary with role and content: 'hi'"


def test_templates_render_inside_of_each_other_and_in_threads():
  """The marks of one rendering are its own."""
  from concurrent import futures  # pylint: disable=g-import-not-at-top

  expected = ours(PUBLISHED['mistral'], CHATS['answered'], False, None)
  assert len(expected[1]) == 2
  with futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda _: ours(PUBLISHED['mistral'], CHATS['answered'], False, None), range(200)))
  assert all(result == expected for result in found)
