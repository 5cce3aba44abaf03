"""Image data: files, folders, lists and boxes."""
