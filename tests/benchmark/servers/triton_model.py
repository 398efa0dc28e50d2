"""The model for Triton's Python backend: translates each batch of the dynamic batcher as a whole.

Runs in Triton's own Python processes, one per instance.
"""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # type: ignore[import-not-found]  # there is one inside Triton only

from tests.benchmark.servers.translation import TextTranslator


class TritonPythonModel:
    """What Triton looks for in a model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        threads = int(parameters["threads"])
        self._translator = TextTranslator(parameters["model"], parameters["compute_type"], 1, threads)

    def execute(self, requests: list[Any]) -> list[Any]:
        tensors = [triton.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        texts = [element.decode() for tensor in tensors for element in tensor.ravel()]
        limits: list[int] = []
        for request, tensor in zip(requests, tensors, strict=True):
            limits += [json.loads(request.parameters())["max_new_tokens"]] * tensor.size
        answers = self._translator.translate(texts, limits)
        responses, start = [], 0
        for tensor in tensors:
            end = start + tensor.size
            text = np.array([answer.encode() for answer in answers[start:end]], dtype=object).reshape(tensor.shape)
            responses.append(triton.InferenceResponse([triton.Tensor("text", text)]))
            start = end
        return responses
