"""Training: loop, optimizer, checkpoints, precision, distributed training and logs."""
