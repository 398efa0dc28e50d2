"""Run -> bundle: ONNX graphs, tokenizers and manifest, checked against the model they came from."""
