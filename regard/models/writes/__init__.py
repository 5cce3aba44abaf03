"""Writers: what turns hidden vectors into an output and its loss."""
