"""The options that requests to an imported model get unless they set them."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from google.protobuf import json_format

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import BundleError
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.core.search_options import OWN_CONVENTIONS, Conventions, Stopping
from dragoman_server.messages.option_reader import BEAM_OPTIONS, SAMPLING_OPTIONS

LENGTHS = ("max_new_tokens", "min_new_tokens")
BEAM = ("beam_size", *BEAM_OPTIONS)
SAMPLING = ("sample", *SAMPLING_OPTIONS)
# Defaults that do not apply to a request that sets an option, since both together would contradict each other.
REPLACED = {
    "alternatives": (*SAMPLING, "num_hypotheses"),
    "beam_size": (*SAMPLING, "num_hypotheses"),
    "early_stopping": ("stopping", "patience"),
    "stopping": ("early_stopping", "patience"),
    "vocabulary": ("suppressed_tokens",),
}


@dataclass(frozen=True)
class Defaults:
    """The defaults of a model.

    Attributes:
        options: Default options without lengths.
        max_new_tokens, min_new_tokens: Default lengths; they give way to a request's prefix and limits. None for the
            model's own limit.
        later_stopping: When a beam search ends unless it stops early.
        conventions: Rules of the model.
    """

    options: pb.GenerationOptions = field(default_factory=pb.GenerationOptions)
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    later_stopping: Stopping = Stopping.EXACT
    conventions: Conventions = OWN_CONVENTIONS

    def complete(self, options: pb.GenerationOptions) -> pb.GenerationOptions:
        """Returns the options of a request with the defaults that it leaves room for."""
        if not self.options.ByteSize():
            return options
        if options.HasField("stopping") and options.stopping == pb.STOPPING_UNSPECIFIED:
            options = _without(options, ("stopping",))  # which asks for the default
        given = {descriptor.name for descriptor, _ in options.ListFields()}
        replaced = {name for option in given for name in (option, *REPLACED.get(option, ()))}
        if options.sample:
            replaced |= {*BEAM, "num_hypotheses"}
        if options.alternatives and "beam_size" not in given:
            replaced |= {*BEAM}
        if options.length_normalization == pb.LENGTH_NORMALIZATION_NONE:
            replaced.add("length_penalty")
        merged = _without(self.options, replaced)
        merged.MergeFrom(options)
        if not merged.sample:
            _clear(merged, set(SAMPLING) - given)
        if not merged.HasField("beam_size"):
            _clear(merged, set(BEAM) - given)
        return merged

    def shown(self) -> pb.GenerationOptions:
        """Returns the options with the lengths, for descriptions of the model."""
        options = pb.GenerationOptions(max_new_tokens=self.max_new_tokens)
        if self.min_new_tokens:
            options.min_new_tokens = self.min_new_tokens
        options.MergeFrom(self.options)
        return options

    def within(self, limits: pb.Limits) -> "Defaults":
        """Returns the defaults with a beam and answers that a server allows."""
        options = pb.GenerationOptions()
        options.CopyFrom(self.options)
        if options.beam_size > limits.beam_size:
            options.beam_size = limits.beam_size
        most = options.beam_size if options.HasField("beam_size") else limits.hypotheses
        if options.num_hypotheses > most:
            options.num_hypotheses = most
        return replace(self, options=options)


OWN_DEFAULTS = Defaults()


def read_defaults(manifest: Manifest) -> Defaults:
    """Reads the defaults of a bundle.

    Raises:
        BundleError: The options are not valid GenerationOptions.
    """
    generation = manifest.generation
    if generation is None:
        return OWN_DEFAULTS
    options = pb.GenerationOptions()
    try:
        json_format.ParseDict(generation.options, options)
    except json_format.ParseError as error:
        raise BundleError(f"manifest.json: generation.options: {error}") from None
    most = options.max_new_tokens if options.HasField("max_new_tokens") else None
    least = options.min_new_tokens
    _clear(options, LENGTHS)
    conventions = Conventions(
        forced_first=generation.forced_first,
        forces_end=generation.forces_end,
        begin_suppressed=tuple(generation.begin_suppressed),
        renormalized=generation.renormalized,
        late_penalty=True,
        history=(manifest.tokens.begin,) if generation.whole_history else (),
    )
    return Defaults(options, most, least, Stopping.CURRENT_LENGTH, conventions)


def _without(options: pb.GenerationOptions, names: Collection[str]) -> pb.GenerationOptions:
    """Returns a copy that lacks some options."""
    copy = pb.GenerationOptions()
    copy.CopyFrom(options)
    _clear(copy, names)
    return copy


def _clear(options: pb.GenerationOptions, names: Collection[str]) -> None:
    for name in names:
        options.ClearField(name)
