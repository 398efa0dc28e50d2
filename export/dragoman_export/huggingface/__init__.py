"""Imports models that Hugging Face's `transformers` saved: configuration and weights, as our Transformer.

`families` maps a configuration to the switches of our model, `weight_names` has the weight names of each family,
`weight_files` reads the files, and `model` combines them. A new family is an entry in the first two.
"""
