"""Point clouds with boxes: files, data sets and batches."""
