"""The training loop and what it needs: schedules, checkpoints, ranks, logs."""
