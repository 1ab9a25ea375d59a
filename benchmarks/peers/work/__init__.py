"""The computations, without a framework: numbers, shapes, first weights."""
