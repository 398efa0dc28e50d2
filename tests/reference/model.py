"""The trained PyTorch model without a cache: logits of the next token, computed from the start every time."""

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
    """A model in float64. Every call is a teacher-forced pass over the whole source and the whole target."""

    def __init__(self, model: Transformer, begin: int) -> None:
        self._model = copy.deepcopy(model).double().eval()
        self._begin = begin

    def forward(self, source: Sequence[int]) -> Forward:
        """Returns the model, given a source (its end token included)."""

        @torch.no_grad()
        def run(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
            memory, mask = self._model.encode(torch.tensor([source] * len(rows)))
            target = torch.tensor([[self._begin, *ids] for ids in rows])
            logits, attention = self._model.decoder(target, memory, mask, return_weights=True)
            return logits[:, -1].numpy(), attention[-1][:, :, -1].mean(1).numpy()

        return run
