"""Text data: lines, tables, sentence pairs, labels, tags and windows."""
