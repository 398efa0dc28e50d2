"""The last minutes as charts and numbers, for the page on the metrics port and for `dragoman top`."""
