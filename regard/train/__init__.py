"""Training loop, learning rate schedules, checkpoints, distributed training and logs."""
