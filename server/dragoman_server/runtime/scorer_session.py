"""The scorer graph on a device: how likely given targets are, and where their tokens look in the source."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime import cuda
from dragoman_server.runtime.device import Device, open_session
from dragoman_server.runtime.graph_check import check_names

TargetScores = tuple[NDArray[np.float32], NDArray[np.float32] | None]


class ScorerRuntime:
    """The graph, loaded.

    Args:
        threads: that compute one operator together.

    Raises:
        BundleError, DeviceError: the graph is not what the manifest says, or can't be loaded there.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int) -> None:
        self._tokens = bundle.manifest.tokens
        self._on_gpu = device.kind == "cuda"
        self._session = open_session(bundle.scorer, device, threads)
        check_names(bundle, bundle.manifest.graphs.scorer, self._session)

    def run(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool) -> TargetScores:
        """Scores a batch.

        Args:
            sources: source ids of each row, the end token included.
            targets: target ids of each row, without begin and end token; may be empty.
            attention: whether it is wanted.

        Returns:
            log-probabilities [rows, target]: entry j of a row is of its token j, and that behind the last is of the end
            token; `target` is one more than the longest has. 0 beyond.
            attention [rows, layers, heads, target, source], or None: row j is of the token of entry j. Of no meaning
            beyond a target or a source.
        """
        if self._on_gpu:
            cuda.enter_thread()
        inputs = [[self._tokens.begin, *target] for target in targets]
        source_ids, source_lengths = self._padded(sources)
        target_ids, target_lengths = self._padded(inputs)
        feed = {
            "source_ids": source_ids,
            "source_lengths": source_lengths,
            "target_ids": target_ids,
            "target_lengths": target_lengths,
        }
        outputs = ["log_probabilities", "cross_attention"] if attention else ["log_probabilities"]
        found = self._session.run(outputs, feed)
        return found[0], found[1] if attention else None

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Ids [rows, longest] and lengths [rows]."""
        lengths = np.array([len(row) for row in rows], np.int32)
        ids = np.full((len(rows), lengths.max()), self._tokens.pad, np.int64)
        for row, padded in zip(rows, ids, strict=True):
            padded[: len(row)] = row
        return ids, lengths
