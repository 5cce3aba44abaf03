"""Engines: implementations of decoding with a trained model; torch is the reference."""
