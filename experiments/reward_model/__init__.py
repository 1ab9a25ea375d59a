"""A model that scores answers, trained on preferences."""
