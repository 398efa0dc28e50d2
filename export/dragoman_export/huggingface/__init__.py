"""Reads a directory that Hugging Face's `transformers` has written: configuration and weights, into our Transformer.

A family of models is a row of switches (`families`) and a way to name weights (`naming`); nothing else knows families.
"""
