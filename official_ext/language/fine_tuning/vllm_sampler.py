"""Completions of a vLLM server that has the adapters of the model in training."""

from collections.abc import Sequence
from concurrent import futures
import hashlib
import json
import os
import shutil
import threading
from typing import Any
import uuid

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import whole_folders
from official_ext.language.fine_tuning import samplers
from official_ext.language.fine_tuning import vllm_server
from official_ext.language.modeling import generation
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import token_sampling

_PREFIX = 'policy-'
# Fields of peft's adapter_config.json that vLLM refuses or ignores, with the field here that causes them.
_UNREAD = {
  'use_dora': 'task.lora.use_dora',
  'modules_to_save': 'task.lora.modules_to_save',
  'rank_pattern': 'task.lora.target_modules: these modules have adapters of several ranks',
  'alpha_pattern': 'task.lora.target_modules: these modules have adapters of several scales',
}


class VllmSampler:
  """Samples by a server: see `samplers.Sampler`. It pushes adapters as folders, each under a new name.

  Attributes:
    failure: the error of the last failed push or request, which TensorFlow raises as another; None.
  """

  def __init__(self, config: samplers.SamplerConfig, drawing: token_sampling.GenerationConfig, adapter_dir: str):
    """Connects to nothing yet.

    Args:
      config: the server.
      drawing: how to draw.
      adapter_dir: the folder for adapters, if `config` names none; '' for none.
    """
    self._config = config
    self._drawing = drawing
    self._folder = os.path.expanduser(config.adapter_dir) or adapter_dir
    self._server = vllm_server.Server(config.vllm_server_base_url, config.vllm_server_timeout)
    self._token = uuid.uuid4().hex[:8]  # Two processes never push under the same name.
    self._pushed = ''
    self._pushed_at = -1
    self._vocab_size = 0
    self._lock = threading.Lock()
    self.failure: Exception | None = None

  # Weights.

  def prepare(self, model: Any, prompt_length: int) -> None:
    """Looks at the server, and removes the adapters that an earlier process of this run has left: see base class."""
    if not self._folder:
      raise errors.UserError('task.sampler.adapter_dir: is empty, and so is the folder of the run; set one of them')
    self._vocab_size = model.config.vocab_size
    try:
      cards = self._server.models()
    except errors.WorkerLostError as error:  # Before the start it is a mistake of the command.
      raise errors.UserError(str(error)) from error
    needed = prompt_length + self._drawing.max_new_tokens
    limit = min((card['max_model_len'] for card in cards if card.get('max_model_len')), default=needed)
    if limit < needed:
      raise errors.UserError(
        f'{vllm_server.FIELD}: {self._server.url}: its model takes {limit} tokens, and prompts with their completions '
        f'have up to {needed}; start it with --max-model-len={needed}'
      )
    place = self._place('')
    for card in cards:
      if card.get('parent') and str(card.get('root', '')).startswith(place):
        self._server.unload_adapter(str(card['id']))
    self._remove_others('')

  def take_weights(self, model: Any, step: tf.Tensor) -> tf.Tensor:
    """Pushes the adapters, if it is time: see base class."""
    reads = [weight.read_value() for adapter in lora.adapters(model) for weight in adapter.own_weights().values()]
    with tf.control_dependencies(reads):  # After the last update; the next one waits for the completions.
      step = tf.identity(step)
    return tf.ensure_shape(tf.numpy_function(lambda at: self._noted(self._push, model, at), [step], tf.int64), [])

  def _push(self, model, step):
    period, step = self._config.weight_sync_steps, int(step)
    if self._pushed and step // period == self._pushed_at // period:
      return np.int64(step)
    name = f'{_PREFIX}{self._token}-{step:06d}'
    whole_folders.write(os.path.join(self._folder, name), lambda folder: self._write(model, folder))
    if self._pushed:
      self._server.unload_adapter(self._pushed)  # First: a server may have room for one.
    self._server.load_adapter(name, self._place(name))
    self._pushed, self._pushed_at = name, step
    self._remove_others(name)
    return np.int64(step)

  def _write(self, model, folder):
    peft_folders.save(model, folder)
    with open(os.path.join(folder, peft_folders.CONFIG_FILE), encoding='utf-8') as file:
      fields = json.load(file)
    for name, cause in _UNREAD.items():
      if fields.get(name):
        raise errors.UserError(f'{cause}: vLLM does not read {name} of adapters; set task.sampler.use_vllm=false')

  def _place(self, name: str) -> str:
    """The folder of an adapter as the server sees it; '' for that of all."""
    return os.path.join(self._config.server_adapter_dir or os.path.abspath(self._folder), name)

  def _remove_others(self, name):
    """Removes the folders of earlier pushes."""
    for entry in os.listdir(self._folder) if os.path.isdir(self._folder) else ():
      if entry.startswith(_PREFIX) and entry != name:
        shutil.rmtree(os.path.join(self._folder, entry), ignore_errors=True)

  # Completions.

  def __call__(
    self, model: Any, prompts: tf.Tensor, mask: tf.Tensor, count: int, seed: tf.Tensor
  ) -> generation.Samples:
    """See base class."""
    draw = lambda *arrays: self._noted(self._drawn, count, *arrays)
    found = tf.numpy_function(draw, [prompts, mask, seed], [tf.int32, tf.float32, tf.int32])
    shape = [prompts.shape[0] * count, self._drawing.max_new_tokens]
    return generation.Samples(*(tf.ensure_shape(value, shape) for value in found))

  def _drawn(self, count, prompts, mask, seed):
    """Tokens int32, log-probabilities float32 and mask int32, each [p * count, max_new_tokens]."""
    rows = [ids[is_token > 0].tolist() for ids, is_token in zip(prompts, mask)]
    size = self._config.prompts_per_request
    parts = [(start, rows[start : start + size]) for start in range(0, len(rows), size)]
    ask = lambda part: self._answers(part[1], count, seed_of(seed, part[0]))
    with futures.ThreadPoolExecutor(self._config.concurrent_requests, 'vllm') as threads:
      found = [completion for answers in threads.map(ask, parts) for completion in answers]
    shape = len(found), self._drawing.max_new_tokens
    tokens = np.full(shape, self._drawing.pad_token_id, np.int32)
    log_probs, filled = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    for row, completion in enumerate(found):
      length = len(completion.tokens)
      tokens[row, :length], filled[row, :length] = completion.tokens, 1
      log_probs[row, :length] = np.nan if completion.log_probs is None else completion.log_probs
    return tokens, log_probs, filled

  def _answers(self, prompts: Sequence[Sequence[int]], count: int, seed: int) -> list[vllm_server.Completion]:
    ask = lambda: self._server.complete(self._pushed, prompts, count, self._drawing, seed)
    try:
      found = ask()
    except vllm_server.RefusedError as error:
      if error.status != 404:
        raise
      with self._lock:  # A server that was restarted has lost the adapter; another thread may have pushed it again.
        logging.warning('%s; pushing the adapter again', error)
        self._server.load_adapter(self._pushed, self._place(self._pushed))
      found = ask()
    for completion in found:
      self._check(completion)
    return found

  def _check(self, completion):
    """Refuses a completion that is not one of this model's."""
    url, length = self._server.url, len(completion.tokens)
    highest = max(completion.tokens, default=0)
    if highest >= self._vocab_size:
      raise errors.UserError(
        f'{vllm_server.FIELD}: {url} returns the token {highest}, and the model has {self._vocab_size}; serve the '
        'model of task.model_path'
      )
    if not 0 < length <= self._drawing.max_new_tokens:
      raise errors.UserError(
        f'{vllm_server.FIELD}: {url} returns {length} tokens, requested 1 to '
        f'{self._drawing.max_new_tokens}; is it vLLM?'
      )
    if self._config.is_stale and completion.log_probs is None:
      raise errors.UserError(
        f'{vllm_server.FIELD}: {url} returns no log-probabilities, which task.sampler.weight_sync_steps='
        f'{self._config.weight_sync_steps} requires; set it to 1'
      )

  def _noted(self, function, *args):
    """Calls a function on the host, and keeps its error."""
    self.failure = None
    try:
      return function(*args)
    except (errors.UserError, errors.WorkerLostError, errors.StorageError) as error:
      self.failure = error
      raise


def seed_of(seed: np.ndarray, prompt: int) -> int:
  """The seed of a request: 0 to 2**62, far from those of others, as a server adds the number of the completion.

  Args:
    seed: int64 [2], of the sampling: the run's, and the number of the step and the replica.
    prompt: the number of the request's first prompt.
  """
  text = f'{int(seed[0])} {int(seed[1])} {prompt}'
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big') >> 2
