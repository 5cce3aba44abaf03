"""Lab: the claims of the lectures as experiments that can come out false."""
