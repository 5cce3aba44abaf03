"""Search for an output: greedy and beam, over anything that starts and steps."""
