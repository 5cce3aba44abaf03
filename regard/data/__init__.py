"""Data sets, tokenizers and batches: readers of the user's files, embedded and synthetic data, padded tensors."""
