"""Ways to compute the read: the formula itself and faster forms that equal it."""
