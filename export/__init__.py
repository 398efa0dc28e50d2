"""From a training run to a bundle: ONNX graphs, tokenizers and manifest, checked against the model they come from."""
