"""Causal language models (GPT)."""
