"""Token tagging (NER)."""
