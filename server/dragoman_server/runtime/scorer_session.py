"""The scorer graph on a device: log-probabilities and attention of given targets."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime import cuda
from dragoman_server.runtime.device import Device, open_session
from dragoman_server.runtime.graph_check import check_names

TargetScores = tuple[NDArray[np.float32], NDArray[np.float32] | None]


class ScorerSession:
    """The scorer graph, loaded.

    Args:
        threads: Threads that compute one operator together, the calling thread included.

    Raises:
        BundleError: The graph does not match the manifest.
        DeviceError: The device cannot run it.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int) -> None:
        self._tokens = bundle.manifest.tokens
        self._on_gpu = device.kind == "cuda"
        self._session = open_session(bundle.scorer, device, threads)
        check_names(bundle, bundle.manifest.graphs.scorer, self._session)

    def run(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool) -> TargetScores:
        """Scores a batch.

        Args:
            sources: Source ids of each row, the end token included.
            targets: Target ids of each row, without begin and end token; may be empty.
            attention: Whether to return attention.

        Returns:
            log-probabilities [rows, target]: Entry j is of a row's token j, the entry after its last token is of the
            end token, later entries are 0. `target` is one more than the longest target.
            attention [rows, layers, heads, target, source] or None: Row j is of the token of entry j. Undefined beyond
            a row's target and source.
        """
        if self._on_gpu:
            cuda.enter_thread()
        source_ids, source_lengths = self._padded(sources)
        target_ids, target_lengths = self._padded([[self._tokens.begin, *target] for target in targets])
        feed = {
            "source_ids": source_ids,
            "source_lengths": source_lengths,
            "target_ids": target_ids,
            "target_lengths": target_lengths,
        }
        names = ["log_probabilities", "cross_attention"] if attention else ["log_probabilities"]
        outputs = self._session.run(names, feed)
        return outputs[0], outputs[1] if attention else None

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Returns ids [rows, longest] and lengths [rows]."""
        lengths = np.array([len(row) for row in rows], np.int32)
        ids = np.full((len(rows), lengths.max()), self._tokens.pad, np.int64)
        for row, padded in zip(rows, ids, strict=True):
            padded[: len(row)] = row
        return ids, lengths
