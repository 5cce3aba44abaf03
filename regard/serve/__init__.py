"""The HTTP service of trained runs, and its page."""
