"""regard: queries read a memory of key-value pairs."""
