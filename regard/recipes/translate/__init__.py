"""Translation: sequence to sequence."""
