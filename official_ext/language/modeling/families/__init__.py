"""The architectures of Hugging Face that a decoder can be: one module each, which lists names and says no more."""

from official_ext.base import registry
from official_ext.language.modeling.families import cohere
from official_ext.language.modeling.families import falcon
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import gemma
from official_ext.language.modeling.families import gpt2
from official_ext.language.modeling.families import granite
from official_ext.language.modeling.families import llama
from official_ext.language.modeling.families import mistral
from official_ext.language.modeling.families import olmo2
from official_ext.language.modeling.families import phi
from official_ext.language.modeling.families import phi3
from official_ext.language.modeling.families import qwen
from official_ext.language.modeling.families import smollm3
from official_ext.language.modeling.families import starcoder2

_ALL = (
  llama.LLAMA,
  mistral.MISTRAL,
  mistral.MIXTRAL,
  mistral.MINISTRAL3,
  qwen.QWEN2,
  qwen.QWEN2_MOE,
  qwen.QWEN3,
  qwen.QWEN3_MOE,
  gemma.GEMMA,
  gemma.GEMMA2,
  gemma.GEMMA3,
  gpt2.GPT2,
  phi3.PHI3,
  phi.PHI,
  smollm3.SMOLLM3,
  starcoder2.STARCODER2,
  granite.GRANITE,
  olmo2.OLMO2,
  cohere.COHERE,
  cohere.COHERE2,
  falcon.FALCON,
)
FAMILIES: registry.Registry[family.Family] = registry.Registry(
  'supported architecture', {each.model_type: each for each in _ALL}
)


def find(model_type: object, where: str) -> family.Family:
  """The family of a `model_type`.

  Args:
    model_type: the one in a configuration.
    where: the file or field that says it.

  Raises:
    errors.UserError: for an unsupported one.
  """
  return FAMILIES.find(model_type, where)
