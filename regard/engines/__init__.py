"""Engines: ways to run a trained model for decoding, of which torch is the reference."""
