"""Where a model looked: recorded weights and their pictures."""
