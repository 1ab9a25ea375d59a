"""SmolLM3: every fourth layer has no rotation."""

from official_ext.base import file_fields
from official_ext.language.modeling.families import family
from official_ext.language.modeling.families import layer_fields
from official_ext.language.modeling.families import rope_fields


def _rotated(fields):
  """no_rope_layers of a configuration that has none."""
  interval = fields.get('no_rope_layer_interval') or 4
  return [int((number + 1) % interval != 0) for number in range(fields['num_hidden_layers'])]


SMOLLM3 = family.Family(
  model_type='smollm3',
  architecture='SmolLM3ForCausalLM',
  fields={
    **family.llama_fields(num_key_value_heads=4, max_position_embeddings=32768, tie_word_embeddings=True),
    'attention_bias': family.BIAS_OF_ALL_FOUR,
    'mlp_bias': family.Field(('mlp_bias',), False),
    'no_rope_layers': family.Field(('no_rope_layers',), _rotated),
  },
  harmless=file_fields.because({'no_rope_layers and layer_types have it': 'no_rope_layer_interval max_window_layers'}),
  layers=layer_fields.WITHOUT_ROPE,
  rope=rope_fields.RopeFields(theta=2000000.0),
)
