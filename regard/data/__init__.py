"""Text to padded batches: sources of pairs, tokenisers, batches by number of tokens."""
