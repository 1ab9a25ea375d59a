"""The training in PyTorch, eagerly: decoders as benchmarks.peers has them, ResNet-50 written plainly."""

from collections.abc import Callable
import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.memory import resnet_torch
from benchmarks.memory import subjects
from benchmarks.peers.runners import pytorch
from benchmarks.peers.work import training

Built = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]


def trainer(
  subject: subjects.Subject, variant: str, work: training.Work | None, batch_size: int
) -> tuple[Callable[[], None], int, Callable[[], str]]:
  """(takes `steps_per_loop` steps, number of parameters, how it is run).

  Args:
    subject: of the training.
    variant: of the subject.
    work: of a decoder.
    batch_size: examples of an update.
  """
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  rows, count = subjects.split(variant, batch_size)
  model, optimizer, inputs, labels = (
    _resnet(variant, batch_size) if work is None else _decoder(work, variant, batch_size)
  )
  clip_norm = 0.0 if work is None else work.clip_norm
  model.train()

  def loop() -> None:
    for _ in range(subject.steps_per_loop):
      optimizer.zero_grad()
      for number in range(count):
        part = slice(number * rows, (number + 1) * rows)
        logits = model(inputs[part])
        (functional.cross_entropy(logits.flatten(0, -2), labels[part].flatten()) / count).backward()
        del logits
      if clip_norm:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
      optimizer.step()

  return loop, sum(parameter.numel() for parameter in model.parameters()), lambda: 'eager'


def _decoder(work: training.Work, variant: str, batch_size: int) -> Built:
  model: Any = pytorch.ARCHITECTURES['decoder'](work)
  pytorch.assign_weights(model, work)
  if variant == 'remat':
    model.blocks = nn.Sequential(*map(resnet_torch.Recomputed, model.blocks))
  inputs, labels = torch.as_tensor(work.inputs[:batch_size]), torch.as_tensor(work.labels[:batch_size]).long()
  return model, pytorch.adamw(model, work), inputs, labels


def _resnet(variant: str, batch_size: int) -> Built:
  model = resnet_torch.resnet50(subjects.NUM_CLASSES, recomputed=variant == 'remat')
  optimizer = torch.optim.SGD(model.parameters(), subjects.LEARNING_RATE, subjects.MOMENTUM)
  rng, size = np.random.default_rng(0), subjects.IMAGE_SIZE
  images = rng.standard_normal([batch_size, 3, size, size], np.float32)
  return (
    model,
    optimizer,
    torch.as_tensor(images),
    torch.as_tensor(rng.integers(0, subjects.NUM_CLASSES, batch_size)),
  )
