"""Sound data: files, resampling and events."""
