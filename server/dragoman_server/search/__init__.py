"""Ways to choose tokens: one small object a request."""
