"""What --experiment can name. One import a line; the only module that is imported for its side effect."""
# ruff: noqa: F401

from experiments import digits
from experiments import digits_mlp
from official.common import registry_imports
