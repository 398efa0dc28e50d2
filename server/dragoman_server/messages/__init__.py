"""API messages to engine requests, and engine results to API messages. Checks every field of a request."""
