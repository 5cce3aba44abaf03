"""Image classification and regression (ViT)."""
