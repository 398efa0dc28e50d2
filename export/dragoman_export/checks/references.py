"""References for the cached decoder step: the trained model, or the bundle's own scorer graph."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, FiniteFloat, ValidationError

from dragoman_export.checks.converted import Perturbation, converted, double, unchanged
from dragoman_export.checks.tolerance import largest_difference
from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import MANIFEST_FILE, SpecialTokens
from dragoman_server.runtime.device import Device, open_session
from dragoman_server.runtime.graph_check import check_names
from dragoman_training.data.batches import pad
from dragoman_training.model import Transformer

Floats = NDArray[np.float32]

PERTURBED_MODELS = 3  # copies of the model with perturbed weights, to measure its sensitivity to rounding


class Reference(Protocol):
    """An uncached model.

    Attributes:
        name: Name for the report.
    """

    name: str

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        """Runs one uncached pass.

        Args:
            sources: Token ids of each row, with the end token.
            targets: Token ids [rows, steps], without begin and end token.

        Returns:
            The log-probabilities of all tokens [rows, steps, vocabulary], or only those of `targets` [rows, steps, 1]:
            for each position, given the tokens before it.
        """

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        """Returns how far single-precision passes are from `exact`, the log-probabilities, at most, in nats."""


class TorchReference:
    """The trained model in double precision, so that a difference is the graphs' rounding, not the sum of two.

    Attributes:
        trained: The model in single precision, as trained.
        precise: The model in double precision, to which it converts its weights as it computes.
        tokens: Special tokens.
    """

    name = "PyTorch, uncached"

    def __init__(self, model: Transformer, tokens: SpecialTokens) -> None:
        self._model = model
        self.trained = converted(model, unchanged)
        self.precise = converted(model, double)
        self.tokens = tokens

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        return self.forward(self.precise, sources, targets)

    @torch.inference_mode()
    def choices(self, source: Sequence[int], answer: Sequence[int], begin: Sequence[int]) -> list[int]:
        """Returns the model's most probable token at each step of an answer, in single precision.

        Args:
            source: Token ids with the end token.
            answer: Token ids without end token, the first ones those of `begin` after the begin token.
            begin: First decoder inputs: the begin token, and tokens that all answers start with.

        Returns:
            Token ids for each place after `begin`; the last one is what follows the answer.
        """
        memory, mask = self.trained.encode(torch.tensor([source]))
        inputs = torch.tensor([[begin[0], *answer]])
        hidden, _ = self.trained.decoder.hidden(inputs, memory, mask)
        decoder = self.trained.decoder
        logits = decoder.projection(hidden[0, len(begin) - 1 :])
        chosen: list[int] = (logits if decoder.logit_bias is None else logits + decoder.logit_bias).argmax(-1).tolist()
        return chosen

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        return max(
            largest_difference(self.forward(model, sources, targets), exact) for model in self.single_precision_models
        )

    @cached_property
    def single_precision_models(self) -> list[Transformer]:
        """The model in single precision, and copies whose weights are each moved up or down by their last digit.

        A backward-stable program computes exactly the result of a model whose weights are about that close (Wilkinson's
        backward error). A single pass may round luckily and say little about the next one.
        """
        return [self.trained, *(converted(self._model, Perturbation(seed)) for seed in range(PERTURBED_MODELS))]

    @torch.inference_mode()
    def forward(self, model: Transformer, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        """Returns log-probabilities [rows, steps, vocabulary] by `precise` or one of `single_precision_models`."""
        logits = model(pad(sources, self.tokens.pad), self._decoder_inputs(targets))
        result: Floats = logits.log_softmax(-1).float().numpy()
        return result

    @torch.inference_mode()
    def step_outputs(
        self, model: Transformer, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns what each decoder step computes.

        Args:
            model: `precise`, or one of `single_precision_models`.
            sources: Token ids of each row, with the end token.
            targets: Token ids [rows, steps], without begin and end token.

        Returns:
            Logits [rows, steps, vocabulary], and the last layer's attention, averaged over its heads
            [rows, steps, source].
        """
        source = pad(sources, self.tokens.pad)
        memory, mask = model.encode(source)
        logits, weights = model.decoder(self._decoder_inputs(targets), memory, mask, return_weights=True)
        return logits.double().numpy(), weights[-1].mean(1).double().numpy()

    @torch.inference_mode()
    def scores(
        self, model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> tuple[Floats, Floats]:
        """Returns the expected outputs of the scorer graph, by `precise` or one of `single_precision_models`."""
        source = pad(sources, self.tokens.pad)
        inputs = pad([[self.tokens.begin, *row] for row in targets], self.tokens.pad)
        labels = pad([[*row, self.tokens.end] for row in targets], self.tokens.pad)
        scores = model(source, inputs).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        lengths = torch.tensor([len(row) + 1 for row in targets])
        scores[torch.arange(scores.shape[1]) >= lengths[:, None]] = 0
        attention = torch.stack(model.attention(source, inputs), 1)
        return scores.float().numpy(), attention.float().numpy()

    def _decoder_inputs(self, targets: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=self.tokens.begin))


class ScorerGraph:
    """The scorer graph of a bundle.

    Raises:
        BundleError: The graph or the recorded check is not what the manifest describes.
    """

    name = "scorer.onnx"

    def __init__(self, bundle: Bundle, device: Device, threads: int) -> None:
        self.tokens = bundle.manifest.tokens
        self.recorded_rounding = recorded_check(bundle).largest_rounding
        self.session: ort.InferenceSession = open_session(bundle.scorer, device, threads)
        check_names(bundle, bundle.manifest.graphs.scorer, self.session)

    def scores(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Returns log-probabilities [rows, target] and attention [rows, layers, heads, target, source].

        Args:
            sources: Token ids of each row, with the end token.
            targets: Token ids of each row, without begin and end token.
        """
        with_begin = [[self.tokens.begin, *row] for row in targets]
        feed: dict[str, NDArray[Any]] = {
            "source_ids": pad(sources, self.tokens.pad).numpy(),
            "source_lengths": np.array([len(row) for row in sources], np.int32),
            "target_ids": pad(with_begin, self.tokens.pad).numpy(),
            "target_lengths": np.array([len(row) for row in with_begin], np.int32),
        }
        scores, attention = self.session.run(["log_probabilities", "cross_attention"], feed)
        return scores, attention

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64]) -> Floats:
        return self.scores(sources, targets.tolist())[0][:, :-1, None]

    def rounding(self, sources: Sequence[Sequence[int]], targets: NDArray[np.int64], exact: Floats) -> float:
        """Returns the largest rounding recorded at export, as there is no model here to measure that of these rows."""
        return self.recorded_rounding


class RecordedGreedy(BaseModel):
    """Greedy answers at export: number of sources, number of equal answers of graphs and model, and some answers."""

    sources: int = 0
    equal: int = 0
    answers: list[tuple[str, list[int]]] = []


class RecordedCheck(BaseModel):
    """The parts of the manifest's `parity` that later checks use."""

    largest_rounding: FiniteFloat = 0.0
    greedy: RecordedGreedy = RecordedGreedy()


def recorded_check(bundle: Bundle) -> RecordedCheck:
    """Reads the results of the check at export from the manifest.

    Raises:
        BundleError: They are not what an export writes.
    """
    try:
        return RecordedCheck.model_validate(bundle.manifest.parity)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("parity", *first["loc"])))
        raise BundleError(f"{bundle.path / MANIFEST_FILE}: {field}: {first['msg']}") from None
