"""Models of Marian (marian-nmt)."""
