"""Sound event detection: sounds to sets of events."""
