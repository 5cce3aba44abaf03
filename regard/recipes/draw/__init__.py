"""Text to image: captions to grids of codes, by classifier-free guidance."""
