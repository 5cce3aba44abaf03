"""Recipe `caption`: image captioning."""
