"""Object detection in point clouds: sets of points to sets of boxes."""
