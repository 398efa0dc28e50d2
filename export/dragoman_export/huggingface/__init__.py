"""Imports models that Hugging Face's `transformers` saved: configuration and weights, as our Transformer.

`families` maps a configuration to the switches of our model, `weight_names` says what a family calls its weights,
`weight_files` reads the files, and `model` puts it all together. A new family is an entry in the first two.
"""
