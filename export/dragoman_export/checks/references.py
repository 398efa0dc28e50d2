"""What the cached step is compared with: the trained model, or the bundle's own teacher-forced graph."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from dragoman_export.checks.recorded import recorded
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.runtime.device import Device, open_session
from dragoman_server.runtime.graph_check import check_names
from dragoman_training.data.batches import pad
from dragoman_training.model import Transformer

Floats = NDArray[np.float32]

DISTURBANCES = 3  # times that weights are moved, to see what rounding does to a model


def largest_difference(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """Infinite where one of two is, or where one is no number; two of the same infinity do not differ."""
    different = a != b
    difference = np.zeros(a.shape)
    np.subtract(a, b, out=difference, where=different, dtype=np.float64)
    largest = float(np.abs(difference).max(initial=0.0))
    return largest if largest == largest else float("inf")


class Reference(Protocol):
    """An uncached model.

    Attributes:
        name: for the report.
        whole: whether it tells the log-probabilities of all tokens or only of those that follow.
    """

    name: str
    whole: bool

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        """One uncached pass.

        Args:
            sources: ids of each row, with the end token.
            targets: ids [rows, steps], without begin and end token.

        Returns:
            [rows, steps, vocabulary] if whole, else [rows, steps, 1]: for each place of `targets` given those before.
        """

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        """How far passes in single precision are from `exact`, what `log_probabilities` gave, in nats: the furthest."""


class TorchReference:
    """The trained model, in double precision: a difference is then the graphs' rounding, not the sum of two.

    Attributes:
        trained: the model as it was trained, in single precision.
        precise: the same in double precision.
    """

    name = "PyTorch, uncached"
    whole = True

    def __init__(self, model: Transformer, tokens: SpecialTokens) -> None:
        self.trained = model
        self.precise = copy.deepcopy(model).double()
        self.tokens = tokens

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        return self._forward(self.precise, sources, targets)

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        return max(largest_difference(self._forward(model, sources, targets), exact) for model in self.singles)

    @cached_property
    def singles(self) -> list[Transformer]:
        """The model in single precision, and the same with each weight moved up or down by its last digit, by chance.

        What a sound program makes of the model is what another model makes exactly whose weights are about so near
        (Wilkinson's backward error). One pass alone may round luckily, and say little of what the next one does.
        """
        models = [self.trained]
        epsilon = torch.finfo(torch.float32).eps
        for seed in range(DISTURBANCES):
            chance = torch.Generator().manual_seed(seed)
            moved = copy.deepcopy(self.trained)
            with torch.no_grad():
                for weight in moved.parameters():
                    up = torch.rand(weight.shape, generator=chance) < 0.5
                    weight.mul_(torch.where(up, 1 + epsilon, 1 - epsilon))
            models.append(moved)
        return models

    @torch.inference_mode()
    def _forward(self, model: Transformer, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=self.tokens.begin)
        logits = model(pad(sources, self.tokens.pad), torch.from_numpy(inputs))
        result: Floats = logits.log_softmax(-1).float().numpy()
        return result

    @torch.inference_mode()
    def choices(
        self, model: Transformer, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What each step chooses from, and where it looks.

        Args:
            model: `precise`, or one of `singles`.

        Returns:
            logits [rows, steps, vocabulary], and the last layer's attention, mean over its heads [rows, steps, source].
        """
        source = pad(sources, self.tokens.pad)
        inputs = torch.from_numpy(np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=self.tokens.begin))
        memory, mask = model.encode(source)
        logits, weights = model.decoder(inputs, memory, mask, return_weights=True)
        return logits.double().numpy(), weights[-1].mean(1).double().numpy()

    @torch.inference_mode()
    def scores(
        self, model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> tuple[Floats, Floats]:
        """What the scorer graph should say, see its outputs, by `trained` or `precise`."""
        source = pad(sources, self.tokens.pad)
        inputs = pad([[self.tokens.begin, *row] for row in targets], self.tokens.pad)
        labels = pad([[*row, self.tokens.end] for row in targets], self.tokens.pad)
        scores = model(source, inputs).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        lengths = torch.tensor([len(row) + 1 for row in targets])
        scores[torch.arange(scores.shape[1]) >= lengths[:, None]] = 0
        attention = torch.stack(model.attention(source, inputs), 1)
        return scores.float().numpy(), attention.float().numpy()


class ScorerGraph:
    """The scorer of a bundle.

    Raises:
        BundleError: the graph or what was recorded of it is not what the manifest says.
    """

    name = "scorer.onnx"
    whole = False

    def __init__(self, bundle: Bundle, device: Device, threads: int) -> None:
        self.tokens = bundle.manifest.tokens
        self.recorded_rounding = recorded(bundle).largest_rounding
        self.session: ort.InferenceSession = open_session(bundle.scorer, device, threads)
        check_names(bundle, bundle.manifest.graphs.scorer, self.session)

    def scores(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Both outputs of the graph: log-probabilities [rows, target], attention [rows, layers, heads, target, source].

        Args:
            sources: ids of each row, with the end token.
            targets: ids of each row, without begin and end token.
        """
        prefixed = [[self.tokens.begin, *row] for row in targets]
        feed: dict[str, NDArray[Any]] = {
            "source_ids": pad(sources, self.tokens.pad).numpy(),
            "source_lengths": np.array([len(row) for row in sources], np.int32),
            "target_ids": pad(prefixed, self.tokens.pad).numpy(),
            "target_lengths": np.array([len(row) for row in prefixed], np.int32),
        }
        scores, attention = self.session.run(["log_probabilities", "cross_attention"], feed)
        return scores, attention

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        return self.scores(sources, targets.tolist())[0][:, :-1, None]

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        """The largest that was found when the bundle was made: there is no model here to tell that of these rows."""
        return self.recorded_rounding
