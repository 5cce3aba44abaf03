"""Data sets, tokenizers and batches."""
