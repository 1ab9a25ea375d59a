"""A task whose model reads tokens, by a tokenizer that the configuration names, or one that stays with the run."""

from collections.abc import Mapping
import functools
import os
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import whole_folders
from official_ext.base.run_folder import model_folders
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import warm_start
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import base_task

_FOLDER = 'tokenizer'  # In the folder of a run.


class TextTask(base_task.Task):
  """A task on texts.

  If the configuration names no tokenizer, the task makes one. The tokenizer depends on more than the configuration,
  such as texts that come with Python, and weights mean nothing with another one. So a run keeps it from its start on,
  in its folder `tokenizer`; whoever resumes from a checkpoint of it uses that one: the run itself, an evaluation,
  `ext.load`, another run by `--checkpoint` or `task.init_checkpoint`.

  The configuration has a field `tokenizer_path`, or a subclass overrides `named_tokenizer`.
  """

  def __init__(self, params: Any, *args: object, **kwargs: object):
    """See base class."""
    super().__init__(params, *args, **kwargs)
    self._workers = workers_lib.get(tf.distribute.get_strategy())

  @property
  def named_tokenizer(self) -> str:
    """The folder of the tokenizer that the configuration names; '' if it names none."""
    return os.path.expanduser(self.config.tokenizer_path)

  def make_tokenizer(self) -> tokenizer_lib.Tokenizer:
    """Makes the tokenizer of a new run, if none is named: the same on all workers."""
    raise NotImplementedError(f'{type(self).__name__} must implement make_tokenizer: no tokenizer is named.')

  @property
  def model_type(self) -> str:
    """The family of the model under Hugging Face's name, beside which the tokenizer will be read; '' if it has none."""
    return getattr(getattr(self.config, 'model', None), 'model_type', '')

  @functools.cached_property
  def tokenizer(self) -> tokenizer_lib.Tokenizer:
    """The one that is named, that of the run whose weights the task starts from, or a new one."""
    folder = self.named_tokenizer or self._kept_tokenizer
    if folder:
      return tokenizer_lib.Tokenizer.load(folder).beside(self.model_type)
    found = self.make_tokenizer().beside(self.model_type)
    hint = 'they make it of other texts; name one for all: task.tokenizer_path'
    self._workers.check_same(
      'tokenizers', found.digest, lambda one, other: [] if one == other else [f'{one}, {other}; {hint}']
    )
    return found

  @functools.cached_property
  def _kept_tokenizer(self) -> str:
    """The folder in which a run has kept its tokenizer that this one continues; '' if there is none."""
    return self._workers.from_chief('tokenizer of the run', self._find_kept)

  def _find_kept(self) -> str:
    folder = self.goes_on_from
    if not folder and self.config.init_checkpoint:
      folder = manifests.folder_of(warm_start.find(self.config.init_checkpoint))
    if not folder:
      return ''
    for run in (folder, os.path.dirname(folder)):  # Checkpoints in `best` are one below.
      if model_folders.RUN_FILE in paths.names(run):
        place = os.path.join(run, _FOLDER)
        return place if model_folders.TOKENIZER_FILE in paths.names(place) else ''
    return ''

  def check_vocabulary(self, vocab_size: int) -> None:
    """Refuses a model without room for all tokens: part of `build_model`.

    Args:
      vocab_size: of the model.

    Raises:
      UserError: there are more.
    """
    number = len(self.tokenizer)
    if number <= vocab_size:
      return
    if self._kept_tokenizer and not self.named_tokenizer:
      raise errors.UserError(
        f'task.model.vocab_size: {vocab_size} is less than the {number} tokens of {self._kept_tokenizer}, which the '
        'weights were trained with: set it to the earlier value, or start a new run in another --model_dir'
      )
    field = 'task.tokenizer_path' if self.named_tokenizer else 'task.model.vocab_size'
    where = f' of {self.named_tokenizer}' if self.named_tokenizer else ''
    raise errors.UserError(
      f'{field}: the tokenizer{where} has {number} tokens, and the model has room for {vocab_size} (vocab_size)'
    )

  def code_files(self) -> Mapping[str, object]:
    """The tokenizer: see base class."""
    return {'tokenizer': self.tokenizer.digest.encode()}

  def keep_files(self, model_dir: str) -> None:
    """Keeps the tokenizer, if the configuration names none: see base class."""
    folder = os.path.join(model_dir, _FOLDER)
    if not self.named_tokenizer and os.path.abspath(self._kept_tokenizer) != os.path.abspath(folder):
      whole_folders.write(folder, self.tokenizer.save)
