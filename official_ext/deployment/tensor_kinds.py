"""The kinds of outputs that exports are compared by. No TensorFlow."""

CLASSES, BOXES, PIXELS, VALUES = KINDS = ('classes', 'boxes', 'pixels', 'values')
# Names of outputs that hold a value for each class, the most direct first.
CLASS_OUTPUTS = ('logits', 'outputs', 'probs', 'probabilities')
