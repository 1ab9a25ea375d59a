"""official-ext prepare --for=text_classification: annotated texts for BERT experiments. No TensorFlow."""

import argparse
from typing import Any

from official_ext.base import errors
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import prepare_splits
from official_ext.data.prepare import conversion_inputs
from official_ext.data.prepare import preparing
from official_ext.data.prepare import settings as settings_lib
from official_ext.language.text import annotated_texts
from official_ext.language.text import bert_conversion
from official_ext.language.text import bert_targets

FLAGS = ('vocab_file', 'do_lower_case', 'text_fields', 'label_field', 'doc_stride', 'query_length')


def add_arguments(group: Any) -> None:
  """Adds the flags; without --for they are refused."""
  vocabulary = 'vocab.txt of the BERT checkpoint; required'
  group.add_argument('--vocab_file', metavar='FILE', help=vocabulary)
  lower = 'as the vocabulary requires, false for cased ones; default: true'
  group.add_argument('--do_lower_case', choices=('true', 'false'), help=lower)
  fields = 'the columns of the one or two texts, or of the words; default: found by their names, such as text'
  group.add_argument('--text_fields', type=_names, metavar='NAME,NAME', help=fields)
  label = 'the column of the label or the tags; default: found by its name, such as label'
  group.add_argument('--label_field', metavar='NAME', help=label)
  stride = 'tokens between the beginnings of the parts of a long context; default: 128'
  group.add_argument('--doc_stride', type=arguments_lib.at_least(1), metavar='N', help=stride)
  query = 'the largest number of tokens of a question; default: 64'
  group.add_argument('--query_length', type=arguments_lib.at_least(1), metavar='N', help=query)


def conversion_of(
  known: argparse.Namespace, settings: settings_lib.Settings, others: tuple[str, ...]
) -> bert_conversion.Conversion:
  """The conversion that the flags define, its input read.

  Args:
    known: the parsed arguments; `seq_length` is taken out of them.
    settings: of the shards.
    others: flags of other targets, which are refused.

  Raises:
    UserError: of the flags or the input.
  """
  flags = prepare_splits.given(known, FLAGS, others)
  if 'vocab_file' not in flags:
    raise errors.UserError(f'--vocab_file: --for={known.target} requires the vocab.txt of a BERT checkpoint')
  inputs = prepare_splits.inputs_of(flags, conversion_inputs.matching(known.inputs))
  labels = tuple(conversion_inputs.read_labels(flags.pop('labels'))) if 'labels' in flags else ()
  reading = annotated_texts.Reading(flags.pop('text_fields', ()), flags.pop('label_field', ''), labels)
  vocab_file = flags.pop('vocab_file')
  flags['do_lower_case'] = flags.get('do_lower_case', 'true') == 'true'
  flags['seq_length'] = known.seq_length or bert_targets.SEQ_LENGTHS[known.target]
  known.seq_length = None
  least = flags.get('query_length', 64) + 4 if known.target == bert_targets.QUESTIONS else 4
  if flags['seq_length'] < least:
    raise errors.UserError(f'--seq_length: {flags["seq_length"]}: expected {least} or more')
  conversion = bert_targets.Conversion(target=known.target, **flags)
  return bert_conversion.Conversion(inputs, conversion, settings, reading, vocab_file)


def print_summary(conversion: bert_conversion.Conversion, done: preparing.Prepared, output: str) -> None:
  """Prints counts, losses, and the command that trains."""
  for line in (*conversion.warnings(), *done.report.warnings(output, '--')):
    print(f'warning: {line}')
  counts = {split: values['examples'] for split, values in conversion.report['splits'].items()}
  experiment, checkpoint = bert_targets.EXPERIMENTS[done.plan.kind], '--set=task.init_checkpoint=CHECKPOINT'
  hint = ', from a checkpoint of BERT with this vocabulary'
  prepare_splits.print_summary(done, output, 'example', counts, experiment, checkpoint, hint=hint)


def _names(text: str) -> tuple[str, ...]:
  found = tuple(name.strip() for name in text.split(','))
  if not all(found) or len(found) > 2:
    raise argparse.ArgumentTypeError(f'{text}: expected one or two names of columns')
  return found
