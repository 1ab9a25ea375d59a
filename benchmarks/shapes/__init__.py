"""How fast the steps of the shipped experiments are in every execution, beside the one that the rule picks."""
