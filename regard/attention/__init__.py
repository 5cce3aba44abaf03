"""The read: queries read a memory of key-value pairs. Scores, choices, masks, memory and kernels."""
