"""All workloads: which peers run which, with which settings, and this project's goals. No framework here."""

from benchmarks.peers import entries
from benchmarks.peers import fine_tuning_workloads
from benchmarks.peers import other_workloads
from benchmarks.peers import training_workloads

WORKLOADS: tuple[entries.Workload, ...] = (
  training_workloads.DIGITS_MLP,
  training_workloads.DIGITS_CONV,
  training_workloads.DECODER,
  training_workloads.DEEP_DECODER,
  training_workloads.COMPILATION,
  other_workloads.IMAGES,
  other_workloads.TEXTS,
  other_workloads.IMAGES_TRAINING,
  other_workloads.TEXTS_TRAINING,
  other_workloads.START,
  other_workloads.CHECKPOINT,
  training_workloads.REPLICAS,
  other_workloads.GENERATION,
  other_workloads.GENERATION_BATCH,
  other_workloads.GENERATION_PROMPT,
  other_workloads.GENERATION_DRAWN,
  other_workloads.ADAPTERS,
  training_workloads.EVALUATION,
  fine_tuning_workloads.SFT,
  fine_tuning_workloads.SFT_LORA,
  fine_tuning_workloads.DPO,
  fine_tuning_workloads.GRPO,
  fine_tuning_workloads.SFT_BF16,
  fine_tuning_workloads.DPO_BF16,
  fine_tuning_workloads.GRPO_BF16,
)


def workload(name: str) -> entries.Workload:
  """The workload with this name.

  Raises:
    KeyError: there is none.
  """
  return {workload.name: workload for workload in WORKLOADS}[name]


def workloads(name: str) -> list[entries.Workload]:
  """The workload with this name, or all with this letter.

  Raises:
    KeyError: there is none.
  """
  found = [workload for workload in WORKLOADS if name in (workload.letter, workload.name)]
  if not found:
    raise KeyError(name)
  return found
