"""From data files to batches: reading, normalizing, tokenizing, splitting and encoding."""
