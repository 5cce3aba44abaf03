"""Engine `compiled`: Transformer decoding by compiled loops over packed weights."""
