"""The last minutes as numbers that a person can read: for the page of the metrics port, and for `dragoman top`."""
