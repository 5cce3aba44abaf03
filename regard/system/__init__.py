"""The operating system: files, locks, memory, pipes, signals and the terminal. Without torch,
except where noted."""
