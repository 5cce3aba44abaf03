"""A model is what it reads, a core, and what it writes."""
