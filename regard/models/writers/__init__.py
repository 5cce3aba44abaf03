"""Writers: turn hidden vectors into an output and its loss."""
