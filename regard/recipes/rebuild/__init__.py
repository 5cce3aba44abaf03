"""Autoencoders of images."""
