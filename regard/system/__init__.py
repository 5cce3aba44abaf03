"""The operating system: files, locks, memory, pipes, signals, terminal. Mostly without torch."""
