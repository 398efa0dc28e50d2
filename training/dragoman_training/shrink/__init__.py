"""Makes a smaller model of a trained one, as the start of a student.

`layers` leaves layers out, `activity` measures what the rest computes on sample pairs, `narrow` computes the weights
of a model with fewer heads, feed-forward units and dimensions, and `command` puts them together.
"""
