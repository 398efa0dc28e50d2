"""A bundle in this process that turns texts into texts, with the options, languages and checks of the server."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import BundleError, load_bundle, load_manifest
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_server.config import ServerConfig
from dragoman_server.core.requests import CarriedText, GenerationRequest, HypothesisResult
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.factory import narrowed
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.engine_options import engine_options
from dragoman_server.engine.scorer import align, row_elements
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.default_options import read_defaults
from dragoman_server.messages.generation_options import read_details, read_options
from dragoman_server.messages.imported_ids import text_carrier, text_encoders
from dragoman_server.messages.languages import FIELDS
from dragoman_server.messages.limits import request_limits, token_limits
from dragoman_server.messages.put_back import Placement
from dragoman_server.offline.engines import OfflineEngines
from dragoman_server.offline.scored import Ids, Scored
from dragoman_server.runtime.device import DeviceError, WorkerLostError
from dragoman_server.runtime.scorer_session import ScorerSession

MAX_RUN_ELEMENTS = 2**22  # of a scorer run's largest arrays, 4 bytes each: they stay in the processor's caches
TARGETS_AT_ONCE = 256  # encoded together; each alone if one can't be


class OfflineModel:
    """A bundle with engines of its own.

    Args:
        path: The bundle's directory.
        config: The server's options.
        languages: An input without text, with the languages of all sources; those of a side of which the model has
            no choice do not count.
        cores: CPU cores that the engines may use; None for all of this process.

    Attributes:
        languages: The languages that count.
        engines: Its engines.

    Raises:
        BulkError: The bundle, the device or a language can't be used.
    """

    def __init__(
        self, path: Path, config: ServerConfig, languages: pb.Input | None = None, cores: int | None = None
    ) -> None:
        options = engine_options(config)
        try:
            bundle = load_bundle(path)
            limits = token_limits(config, bundle.manifest.limits)
            bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))
            self.defaults = read_defaults(bundle.manifest)
            self.engines = OfflineEngines(bundle, options if cores is None else replace(options, cores=cores))
        except (BundleError, DeviceError, WorkerLostError) as error:
            raise BulkError(str(error)) from None
        self.manifest = bundle.manifest
        self._bundle, self._path = bundle, path
        self._languages, self._sources, self._targets = text_encoders(bundle)
        self._limits = request_limits(config, self.engines.rows, bundle.manifest.shape)
        self.languages = pb.Input()
        for side, name in FIELDS.items():
            if languages is not None and languages.HasField(name) and self._languages.codes[side]:
                setattr(self.languages, name, getattr(languages, name))
        self._forced: int | None = self._language_token()
        shortlist = bundle.manifest.shortlist
        self._uses_shortlist = shortlist is not None and shortlist.default
        self._scorer: ScorerSession | None = None
        self._carrier = text_carrier(bundle, self._sources)
        self._placement = Placement(self._sources.segment_part, TargetDecoder(bundle.target_tokenizer))

    def take_unreadable(self, texts: Sequence[str]) -> list[CarriedText | None]:
        """Returns what skips the model in each text, if the bundle says so, and what is left of it."""
        return [self._carrier.take(text) if self._carrier is not None else None for text in texts]

    def encode(self, texts: Sequence[str]) -> list[Ids | str]:
        """Returns the token ids of each source, the end token included; of one that can't be read, what is wrong."""
        inputs = [pb.Input(text=text) for text in texts]
        if self.languages.ByteSize():
            for source in inputs:
                source.MergeFrom(self.languages)
        encoded = asyncio.run(self._sources.encode_batch(inputs, [""] * len(texts)))
        return [_problem(ids) if isinstance(ids, ApiError) else ids for ids in encoded]

    def search(self, options: pb.GenerationOptions, without: Collection[str] = ()) -> SearchOptions:
        """Reads how to search; the bundle's defaults complete the options.

        Args:
            without: Options whose defaults do not count.

        Raises:
            BulkError: An option is out of range, or contradicts another.
        """
        defaults = self.defaults.within(self._limits)
        for name in without:
            defaults.options.ClearField(name)
        complete, details = defaults.complete(options), read_details(pb.Details(), self._limits)
        try:
            search = asyncio.run(read_options(complete, details, self._targets, self._limits, defaults))
        except ApiError as error:
            raise BulkError(f"{self._path}: {_as_flag(error.message)}") from None
        if search.use_shortlist and self._bundle.shortlist is None:
            raise BulkError(f"{self._path}: --shortlist is set, but the model has no shortlist")
        if self._forced is None:
            return search
        return replace(search, conventions=replace(search.conventions, forced_first=self._forced))

    def requests(self, sources: Sequence[Ids], search: SearchOptions) -> list[GenerationRequest]:
        """Returns a request for each source, with the tokens of the bundle's shortlist if the search uses it."""
        wanted = self._uses_shortlist if search.use_shortlist is None else search.use_shortlist
        shortlist = self._bundle.shortlist if wanted else None
        if shortlist is None:
            return [GenerationRequest(ids, search) for ids in sources]
        return [GenerationRequest(ids, narrowed(search, shortlist, ids)) for ids in sources]

    def decode(self, ids: Sequence[Ids]) -> list[str]:
        """Returns the texts of targets."""
        texts: list[str] = self._bundle.target_tokenizer.decode_batch(ids)
        return texts

    def score(
        self,
        sources: Sequence[Ids],
        targets: Sequence[str],
        should_stop: Callable[[], bool],
        found: Sequence[Scored | None] = (),
    ) -> list[float | None]:
        """Scores targets, each with its source, on all cores.

        Args:
            found: What this model's own search found out about each target, None if it did not write it. If the text
                has just these tokens, and the model has no rules that change probabilities, this is its score.

        Returns:
            Mean log-probability per token, the end token included; None where the model can't write the target.

        Raises:
            StoppedError: `should_stop` returned True.
        """
        ids = self._encode_targets(targets)
        scores: list[float | None] = [None] * len(targets)
        missing = [index for index, one in enumerate(ids) if one is not None]
        if found and self.manifest.generation is None and self._forced is None:
            for index in missing:
                own = found[index]
                if own is not None and list(ids[index] or ()) == own.ids:
                    scores[index] = own.score
            missing = [index for index in missing if scores[index] is None]
        runs = self._scorer_runs(sources, ids, missing)
        scorer = self._open_scorer()

        def run(indices: list[int]) -> None:
            if should_stop():
                raise StoppedError
            chosen = [ids[index] or () for index in indices]
            log_probabilities, _ = scorer.run([sources[index] for index in indices], chosen, False)
            for row, index in enumerate(indices):
                first, last = self._forced is not None, len(chosen[row]) + 1  # a forced token is no choice
                scores[index] = float(log_probabilities[row, first:last].mean(dtype="float64"))

        with ThreadPoolExecutor(self.engines.count) as pool:
            list(pool.map(run, runs))
        return scores

    def put_back(
        self, carried: Sequence[tuple[CarriedText, Ids]], hypotheses: Sequence[HypothesisResult], texts: Sequence[str]
    ) -> list[str]:
        """Returns the texts of targets with what their sources carried past the model.

        Args:
            carried: What was carried, and the ids of what was left of the source.
            hypotheses: The targets.
            texts: Their texts, which stop sequences may have cut.
        """
        sources, targets = [ids for _, ids in carried], [hypothesis.ids for hypothesis in hypotheses]
        alignments: list[list[int] | None] = [None] * len(carried)

        def run(indices: list[int]) -> None:
            rows, ids = [sources[index] for index in indices], [targets[index] for index in indices]
            _, attention = self._open_scorer().run(rows, ids, True)
            assert attention is not None
            for row, index in enumerate(indices):
                alignments[index] = align(attention[row, :, :, : len(targets[index]) + 1, : len(sources[index])])

        placed = [index for index, (one, _) in enumerate(carried) if Placement.needs_alignment(one)]
        if placed:
            self._open_scorer()  # once, and not in the threads
            with ThreadPoolExecutor(self.engines.count) as pool:
                list(pool.map(run, self._scorer_runs(sources, targets, placed)))
        found: list[str] = []
        for (one, ids), hypothesis, text, alignment in zip(carried, hypotheses, texts, alignments, strict=True):
            boundaries = self._placement.boundaries(one, ids) if alignment is not None else []
            found.append(self._placement.put_back(text, hypothesis, one, boundaries, alignment))
        return found

    def _open_scorer(self) -> ScorerSession:
        if self._scorer is None:
            self._scorer = self.engines.scorer()
        return self._scorer

    def close(self) -> None:
        """Ends the engines."""
        self.engines.close()

    def _language_token(self) -> int | None:
        """Returns the first token of every target, if the target language forces it."""
        source = pb.Input(text="a")
        source.MergeFrom(self.languages)
        try:
            self._languages.frame(source, "")
            return self._languages.forced_first(source, "")
        except ApiError as error:
            raise BulkError(f"{self._path}: {_as_flag(error.message)}") from None

    def _encode_targets(self, targets: Sequence[str]) -> list[tuple[int, ...] | None]:
        forced = () if self._forced is None else (self._forced,)
        encoded: list[tuple[int, ...] | None] = []
        for first in range(0, len(targets), TARGETS_AT_ONCE):
            chunk = targets[first : first + TARGETS_AT_ONCE]
            try:
                found: Sequence[tuple[int, ...] | None] = self._encode_chunk(chunk)
            except ApiError:
                found = [self._encode_one(target) for target in chunk]
            encoded += [None if ids is None else (*forced, *ids) for ids in found]
        return encoded

    def _encode_chunk(self, targets: Sequence[str]) -> list[tuple[int, ...]]:
        inputs = [pb.Input(text=target) for target in targets]
        return asyncio.run(self._targets.encode(inputs, [""] * len(targets), complete=True))

    def _encode_one(self, target: str) -> tuple[int, ...] | None:
        try:
            [ids] = self._encode_chunk([target])
        except ApiError:
            return None
        return ids

    def _scorer_runs(
        self, sources: Sequence[Ids], targets: Sequence[Sequence[int] | None], missing: Sequence[int]
    ) -> list[list[int]]:
        """Groups the missing targets, those of similar lengths together, into runs that fit the caches."""
        shape = self.manifest.shape
        lengths = {index: (len(sources[index]), len(targets[index] or ()) + 1) for index in missing}
        order = sorted(missing, key=lambda index: (lengths[index], index))
        runs: list[list[int]] = []
        longest_source = longest_target = 0
        for index in reversed(order):
            source, target = lengths[index]
            longest_source, longest_target = max(longest_source, source), max(longest_target, target)
            elements = row_elements(shape, longest_source, longest_target)
            if runs and (len(runs[-1]) + 1) * elements <= MAX_RUN_ELEMENTS:
                runs[-1].append(index)
            else:
                runs.append([index])
                longest_source, longest_target = source, target
        return runs


def identify(path: Path) -> str:
    """Returns name and version of a bundle, and the SHA-256 of its manifest, which has the digests of all its files.

    Raises:
        BulkError: The directory is not a bundle.
    """
    try:
        root, manifest = load_manifest(path)
        digest = hashlib.sha256((root / MANIFEST_FILE).read_bytes()).hexdigest()
    except (BundleError, OSError) as error:
        raise BulkError(str(error)) from None
    return f"{manifest.name} version {manifest.version} with manifest {digest}"


def _problem(error: ApiError) -> str:
    """Returns what is wrong with a text, without the name of its field: "is empty"."""
    return error.message.removeprefix(".text ").strip()


def _as_flag(message: str) -> str:
    """Returns a message that starts with a flag in place of a field: "--beam-size is 0, but must be ..."."""
    field, space, rest = message.strip().partition(" ")
    return f"--{field.removeprefix('options.').lstrip('.').replace('_', '-')}{space}{rest}"
