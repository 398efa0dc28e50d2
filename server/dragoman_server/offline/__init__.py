"""Work on whole files with engines in this process: read by windows, computed sorted by length, written once.

`sources` reads, `engines` and `model` compute, `output` writes so that a killed run goes on where it was, and
`pipeline` keeps the engines busy in between.
"""
