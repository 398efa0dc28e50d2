"""The Dragoman client, and the stubs of its API in `dragoman.v1`."""
