"""Engines: ways to run a trained model for decoding. The engine torch is the reference."""
