"""Models: a reader embeds the input, a core processes it, a writer computes output and loss."""
