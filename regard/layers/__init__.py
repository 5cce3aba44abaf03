"""What holds weights and knows no task: multi-head reads, positions, feed-forward, add & norm, cells."""
