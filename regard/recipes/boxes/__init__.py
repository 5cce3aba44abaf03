"""Object detection (DETR): images to sets of boxes."""
