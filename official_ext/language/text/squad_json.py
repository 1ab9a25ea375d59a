"""Questions in SQuAD's JSON, which Model Garden's question answering reads. No TensorFlow.

Format: https://rajpurkar.github.io/SQuAD-explorer/, version 2.0.
"""

from collections.abc import Sequence
import json

from official_ext.base import json_types


def dump(questions: Sequence[json_types.JsonMapping], first_answer_only: bool = False) -> str:
  """The text of a file.

  Args:
    questions: of `annotated_texts`, with `number`.
    first_answer_only: whether to keep one answer of each: training requires exactly one.
  """
  paragraphs = []
  for each in questions:
    answers = each['answers'][:1] if first_answer_only else each['answers']
    question = {
      'id': each['id'] or str(each['number']),
      'question': each['question'],
      'answers': answers,
      'is_impossible': not answers,
    }
    paragraphs.append({'context': each['context'], 'qas': [question]})
  return json.dumps({'version': 'v2.0', 'data': [{'title': '', 'paragraphs': paragraphs}]}, ensure_ascii=False) + '\n'
