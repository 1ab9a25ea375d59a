"""What is computed, without a framework: numbers, shapes, first weights."""
