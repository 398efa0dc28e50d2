"""Engines in this process without a server, for work on whole files.

`engines` and `model` compute; `backend` is what `dragoman bulk` loads. For `dragoman-distill`, `sources` reads and
`pipeline` keeps the engines busy. The rest of the work on files is the client's, in `dragoman.bulk`.
"""
