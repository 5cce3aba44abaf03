"""Writers: output heads, which turn hidden vectors into an output and its loss."""
