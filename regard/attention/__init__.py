"""Attention: queries read a memory of key-value pairs. One folder for each exchangeable part."""
