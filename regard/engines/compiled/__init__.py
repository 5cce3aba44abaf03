"""The compiled engine: Transformer decoding by compiled loops over packed weights."""
