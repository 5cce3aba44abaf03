"""What all recipes share: tasks, trained runs, text pairs, images."""
