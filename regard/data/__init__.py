"""Text to padded batches: sources of pairs, tokenizers, batches by number of tokens."""
