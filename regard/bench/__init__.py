"""Speed of training and inference of a trained run on this machine, with a profile."""
