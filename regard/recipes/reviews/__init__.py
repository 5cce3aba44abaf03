"""Text classification and regression: sentiment."""
