"""Claims on self-attention and the Transformer."""
