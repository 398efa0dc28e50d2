"""What the server tells of its calls: a line for each, one every few seconds for all, and traces."""
