"""Date normalization: embedded data, sequence to sequence."""
