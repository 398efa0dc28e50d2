"""Work on whole files: `dragoman bulk`, and what `dragoman-distill` has in common with it.

`rows` reads and `encoders` writes the formats, a `Backend` answers, and `output` saves, so that killed work
can continue.
"""
