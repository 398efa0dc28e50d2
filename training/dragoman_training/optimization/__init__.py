"""One optimizer step: the loss, AdamW with its learning rate, and the checks for divergence."""
