"""From data files to batches: reading, normalising, tokenizing, splitting and encoding."""
