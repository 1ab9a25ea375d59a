"""The targets of a conversion of texts: the tasks of Model Garden's BERT experiments. No TensorFlow."""

import dataclasses

from official_ext.data.prepare import splits

CLASSIFICATION = 'text_classification'
TAGGING = 'tagging'
QUESTIONS = 'question_answering'
TARGETS = (CLASSIFICATION, TAGGING, QUESTIONS)

EXPERIMENTS = {
  CLASSIFICATION: 'bert/sentence_prediction',
  TAGGING: 'bert/tagging',
  QUESTIONS: 'bert/squad',
}
SEQ_LENGTHS = {CLASSIFICATION: 128, TAGGING: 128, QUESTIONS: 384}  # The defaults of the experiments.
VOCABULARY = 'vocab.txt'  # In the prepared folder.


@dataclasses.dataclass(frozen=True)
class Conversion(splits.Conversion):
  """The settings of a conversion: see base class.

  Attributes:
    target: one of `TARGETS`.
    seq_length: tokens of a row; longer texts are cut, longer sentences and contexts are divided.
    do_lower_case: whether texts become lower case, as the vocabulary requires.
    doc_stride: tokens between the beginnings of the parts of a context.
    query_length: the largest number of tokens of a question.
  """

  seq_length: int = 128
  do_lower_case: bool = True
  doc_stride: int = 128
  query_length: int = 64
