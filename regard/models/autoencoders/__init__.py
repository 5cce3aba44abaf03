"""Autoencoders: images through a small code, continuous or quantized."""
