"""The trained PyTorch model without a KV cache: logits of the next token, computed from the start for every target."""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman_training.model import Transformer

Matrix = NDArray[np.float64]
# Ids of hypotheses of one length -> logits of what follows each, [rows, vocabulary], and attention over the source,
# mean over the heads of the last decoder layer, [rows, source].
Forward = Callable[[Sequence[Sequence[int]]], tuple[Matrix, Matrix]]


class ReferenceModel:
    """A model in float64. Every target that is new for its source is a teacher-forced pass over the whole of it."""

    def __init__(self, model: Transformer, begin: int) -> None:
        self._model = copy.deepcopy(model).double().eval()
        self._begin = begin
        self._known: dict[tuple[int, ...], Forward] = {}

    def forward(self, source: Sequence[int]) -> Forward:
        """Returns the model, given a source (its end token included)."""
        key = tuple(source)
        if key not in self._known:
            self._known[key] = self._given(key)
        return self._known[key]

    def _given(self, source: tuple[int, ...]) -> Forward:
        with torch.no_grad():
            memory, mask = self._model.encode(torch.tensor([source]))
        found: dict[tuple[int, ...], tuple[Matrix, Matrix]] = {}  # by ids: logits and attention of one row

        @torch.no_grad()
        def run(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
            keys = [tuple(ids) for ids in rows]
            if new := [ids for ids in dict.fromkeys(keys) if ids not in found]:
                target = torch.tensor([[self._begin, *ids] for ids in new])
                given = memory.expand(len(new), -1, -1), mask.expand(len(new), *mask.shape[1:])
                logits, attention = self._model.decoder(target, *given, return_weights=True)
                columns = logits[:, -1].numpy(), attention[-1][:, :, -1].mean(1).numpy()
                found.update(zip(new, zip(*columns, strict=True), strict=True))
            logits_rows, attention_rows = zip(*(found[ids] for ids in keys), strict=True)
            return np.stack(logits_rows), np.stack(attention_rows)

        return run
