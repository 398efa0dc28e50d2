"""Lexical shortlists: which target tokens are likely for a source, found by aligning training pairs."""
