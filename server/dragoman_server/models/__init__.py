"""Which models there are, which versions of them are served, and how these come and go while requests run."""
