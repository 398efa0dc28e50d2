"""Exports a trained or published model to a bundle: ONNX graphs, tokenizers and a manifest, checked against the model.

From the command down: `export` exports or checks, `build` builds a bundle, `precision` quantizes it, `checks` compares
it with the model and measures its quality, `bundle` writes its files, `graphs` holds the modules that are exported.
`run_data` reads runs and `imports` published models, in the formats of `huggingface`, `ctranslate2` and `marian`, both
as an `Original`. `to_run` is the way back, from a bundle or a published model to a run.
"""

import os

# NOTE: before anything imports ONNX Runtime; see server/dragoman_server/__init__.py.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
