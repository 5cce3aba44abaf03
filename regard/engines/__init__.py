"""Engines: implementations of decoding with a trained model. Engine `torch` is the reference."""
