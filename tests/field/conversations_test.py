"""All of a conversation is in the text that is learned, whichever of two forms a value has; or the record is named."""

import json

import pytest

from official_ext.base import errors
from official_ext.data import numbered_records
from official_ext.language.text import chat_templates
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ CONTENT }}{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ ARGUMENTS }}){% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FIRST = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" + TEMPLATE.replace(
  '{% for m in messages %}', "{% for m in messages if m.role != 'system' %}"
)


def template(content='m.content', arguments='call.function.arguments | tojson', source=TEMPLATE):
  return source.replace('CONTENT', content).replace('ARGUMENTS', arguments)


def learned(record, tokenizer, source, **fields):
  """(all of the text, the learned part of it)."""
  fields = {'is_training': True, 'global_batch_size': 2, 'seq_length': 256, **fields}
  records = numbered_records.ListRecords([record])
  row = text_sources.open_source(
    text_task.TextDataConfig(**fields), tokenizer.with_chat_template(source), records
  ).fetch([0])[0]
  return [
    tokenizer.decode(ids) for ids in (row['input_ids'][row['segment_ids'] > 0], row['labels'][row['labels'] >= 0])
  ]


def says(role, content, **others):
  return {'role': role, 'content': content, **others}


CALL, HI = {'city': 'Rome', 'n': [2]}, [{'type': 'text', 'text': 'Hi '}, {'type': 'text', 'text': 'you</think>!'}]


@pytest.mark.parametrize(
  'arguments',
  [
    'call.function.arguments | tojson',
    "'' + call.function.arguments + ''",
    'call.function.arguments',
    "'%s' % call.function.arguments",
    'call.function.arguments if call.function.arguments is string else call.function.arguments | tojson',
    '{ARGUMENTS}',
  ],
)
def test_arguments_that_are_a_text_have_the_tokens_of_the_object(tokenizer, arguments):
  laid_out = '{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }};{% endfor %}'
  source = template(arguments=arguments).replace('{{ {ARGUMENTS} }}', laid_out)
  texts = set()
  for form in (CALL, json.dumps(CALL)):
    turns = [
      says('user', 'Weather?'),
      says('assistant', '', tool_calls=[{'function': {'name': 'f', 'arguments': form}}]),
    ]
    texts.add(tuple(learned({'messages': turns}, tokenizer, source)))
  ((_, found),) = texts
  assert found == (
    f'f({json.dumps(CALL)})<|im_end|>\n' if laid_out not in source else 'f(city=Rome;n=[2];)<|im_end|>\n'
  )


def test_arguments_that_are_no_object_stay_a_text():
  made = chat_templates.ChatTemplate('{{ messages[0].tool_calls[0].arguments }}', 'x')
  for text in ('{"a": ', '[1]', 'x'):
    assert made.render([{'role': 'assistant', 'tool_calls': [{'arguments': text}]}]) == text


@pytest.mark.parametrize('role', ['system', 'user', 'assistant', 'tool'])
@pytest.mark.parametrize(
  'content',
  [
    'm.content',
    "'' + m.content + ''",
    'm.content | trim',
    'm.content.strip()',
    "m.content.split('</think>')[-1] if '</think>' in m.content else m.content",
  ],
)
def test_a_content_in_parts_has_the_tokens_of_its_text(tokenizer, content, role):
  turns = [says(name, name) for name in ('system', 'user', 'tool', 'assistant')]
  texts = set()
  for form in (HI, ''.join(part['text'] for part in HI)):
    messages = [says(role, form) if turn['role'] == role else turn for turn in turns]
    texts.add(tuple(learned({'messages': messages}, tokenizer, template(content))))
  assert len(texts) == 1 and 'type' not in str(texts)


def test_a_template_that_lays_out_parts_sees_them():
  source = '{% for part in messages[0].content %}<{{ part.type }}>{{ part.text }}{% endfor %}'
  made = chat_templates.ChatTemplate(source, 'x')
  assert made.render([says('user', HI)]) == '<text>Hi <text>you</think>!'
  made = chat_templates.ChatTemplate('{{ messages[0].content }}', 'x')
  assert made.render([says('user', [])]) == ''
  with pytest.raises(errors.UserError, match='a content has other parts than texts'):
    made.render([says('user', [{'type': 'image'}])])


@pytest.mark.parametrize('role', ['system', 'tool'])
def test_a_turn_that_the_template_leaves_out_is_named(tokenizer, role):
  source = template(source=FIRST).replace("m.role != 'system'", "m.role in ('user', 'assistant')")
  turns = [says('system', 'Be kind.'), says('user', 'Hi'), says('assistant', 'Yes'), says(role, 'Be brief.')]
  turns += [says('user', 'So?'), says('assistant', 'No')]
  assert 'Be kind.' in learned({'messages': turns[:3]}, tokenizer, source)[0]
  for record, fields in (
    ({'messages': turns}, {}),
    ({'prompt': turns[:-1]}, {'example_format': 'prompt'}),
    ({'prompt': turns[:-1], 'chosen': turns[-1:], 'rejected': turns[2:3]}, {'example_format': 'preference'}),
  ):
    with pytest.raises(errors.UserError, match=f"leaves message 3 out, a turn of the {role}: 'Be brief.'"):
      learned(record, tokenizer, source, **fields)


def test_tools_that_the_template_leaves_out_are_named(tokenizer, caplog):
  record = {'messages': [says('user', 'Hi'), says('assistant', 'Yes')], 'tools': [{'function': {'name': 'weather'}}]}
  assert '"weather"' in learned(record, tokenizer, '{{ tools | tojson }}' + template())[0]
  with pytest.raises(errors.UserError, match="leaves the tools out, such as 'weather'; .* set tools_column=''"):
    learned(record, tokenizer, template())
  learned(record, tokenizer, template(), tools_column='')
  learned({'prompt': 'Hi', 'completion': ' you', 'tools': record['tools']}, tokenizer, template())
  assert "the column 'tools' is read by other trainers, and not here" in caplog.text


def test_two_system_messages_of_sharegpt_are_refused(tokenizer):
  says_it = lambda name, text: {'from': name, 'value': text}
  record = {'conversations': [says_it('system', 'One'), says_it('human', 'Hi'), says_it('gpt', 'Yes')]}
  fields = {'example_format': 'sharegpt'}
  assert 'One' in learned({**record, 'system': 'One'}, tokenizer, template(), **fields)[0]
  with pytest.raises(errors.UserError, match="column 'system' and the first turn are two system messages"):
    learned({**record, 'system': 'Two'}, tokenizer, template(), **fields)
