"""Quality over speed of several models that do the same task."""
