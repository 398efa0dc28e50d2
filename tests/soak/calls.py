"""Draws random calls of every kind for the shipped model."""

import random
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb

GENERATION = "/dragoman.v1.GenerationService/"
INFERENCE = "/inference.GRPCInferenceService/"
WORDS = (
    "dragoman interpreter court colonel thorough onomatopoeia transformer queue rhythm knight psychology island "
    "choir wednesday schedule lieutenant embarrassed rendezvous tongue plough yacht subtle receipt aisle mischievous "
    "antidisestablishmentarianism floccinaucinihilipilification a i cat dog house water language machine"
).split()
SOUNDS = "AA AE AH AO AW B CH D EH ER EY F G HH IH IY K L M N OW P R S SH T TH UW V W Y Z".split()
PHONES = range(4, 43)  # target ids other than special tokens
PRIORITIES = (pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BATCH)
LONGEST = 60  # tokens; the longest minimum length of an answer

WEIGHTS = {  # relative frequency of each method
    "Generate": 6,
    "GenerateStream": 5,
    "GenerateBatch": 2,
    "Score": 2,
    "ModelInfer": 3,
    "ModelStreamInfer": 2,
}


@dataclass(frozen=True)
class Call:
    """A call to make.

    Attributes:
        method: Path of the gRPC method.
        requests: Request messages; several only if requests are streamed.
        streams: Whether the answers are streamed.
        limited: Whether the call supports a time limit.
    """

    method: str
    requests: tuple[Message, ...]
    streams: bool = False
    limited: bool = False

    @property
    def name(self) -> str:
        return self.method.rpartition("/")[2]


def draw_calls(count: int, seed: int) -> list[Call]:
    """Draws calls; the same ones for the same seed."""
    draw = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    return [_draw_call(draw, kind) for kind in draw.choices(kinds, weights, k=count)]


def _draw_call(draw: random.Random, kind: str) -> Call:
    word = pb.Input(text=draw.choice(WORDS))
    if kind in ("Generate", "GenerateStream"):
        request = pb.GenerateRequest(
            input=word, options=_options(draw), details=_details(draw), priority=draw.choice(PRIORITIES)
        )
        return Call(GENERATION + kind, (request,), kind == "GenerateStream", limited=True)
    if kind == "GenerateBatch":
        inputs = [pb.Input(text=text) for text in draw.choices(WORDS, k=draw.choice([1, 4, 16, 40]))]
        options = _options(draw)
        return Call(GENERATION + kind, (pb.GenerateBatchRequest(inputs=inputs, options=options),), limited=True)
    if kind == "Score":
        texts = (" ".join(draw.choices(SOUNDS, k=draw.randint(0, 12))) for _ in range(draw.choice([1, 3, 20])))
        score = pb.ScoreRequest(
            input=word,
            targets=[pb.Input(text=text) for text in texts],
            alignment=draw.random() < 0.5,
            attention=draw.random() < 0.2,
        )
        return Call(GENERATION + kind, (score,))
    if kind == "ModelInfer":
        return Call(INFERENCE + kind, (_infer_request(draw, draw.choices(WORDS, k=draw.choice([1, 1, 8]))),))
    requests = [_infer_request(draw, [draw.choice(WORDS)], str(number)) for number in range(draw.randint(1, 5))]
    return Call(INFERENCE + kind, tuple(requests), streams=True)


def _options(draw: random.Random) -> pb.GenerationOptions:
    """Draws options of greedy, beam or sampling search, short or long, with some constraints."""
    options = pb.GenerationOptions()
    kind = draw.choice(["greedy", "greedy", "beam", "groups", "sample", "samples", "alternatives"])
    if kind == "beam":
        options.beam_size = draw.randint(1, 8)
        options.num_hypotheses = draw.randint(1, options.beam_size)
        options.length_penalty = draw.choice([0.0, 0.6, 1.0])
        options.early_stopping = draw.random() < 0.5
    elif kind == "groups":
        options.beam_size, options.beam_groups = draw.choice([(4, 2), (6, 3)])
    elif kind in ("sample", "samples"):
        options.sample = True
        options.seed = draw.getrandbits(64)
        options.temperature = draw.choice([0.5, 1.0, 2.0])
        options.num_hypotheses = draw.randint(2, 6) if kind == "samples" else 1
        if draw.random() < 0.5:
            options.top_p = 0.9
    elif kind == "alternatives":
        options.alternatives = True
        options.num_hypotheses = draw.randint(2, 4)
    if draw.random() < 0.4:
        options.min_new_tokens = draw.randint(20, LONGEST)
    elif draw.random() < 0.2:
        options.max_new_tokens = draw.randint(1, 5)
    if draw.random() < 0.2:
        options.prefix.text = " ".join(draw.choices(SOUNDS, k=2))
        if kind != "alternatives" and draw.random() < 0.5:
            options.prefix_bias = 0.6
    if draw.random() < 0.15:
        options.suppressed_tokens.extend(draw.sample(PHONES, 3))
    if draw.random() < 0.15:
        options.suppressed_sequences.add().text = " ".join(draw.choices(SOUNDS, k=2))
    if draw.random() < 0.15:
        options.repetition_penalty = 1.5
    if draw.random() < 0.15:
        options.no_repeat_ngram_size = draw.randint(2, 3)
    if draw.random() < 0.2:
        options.stop_sequences.append(draw.choice(SOUNDS))
    if draw.random() < 0.1:
        options.vocabulary.ids.extend(draw.sample(PHONES, 25))
    return options


def _details(draw: random.Random) -> pb.Details:
    return pb.Details(
        log_probabilities=draw.random() < 0.4,
        top_tokens=draw.choice([0, 0, 0, 5, 20]),
        alignment=draw.random() < 0.15,
        attention=draw.random() < 0.05,
    )


def _infer_request(draw: random.Random, texts: list[str], id_: str = "") -> oip.ModelInferRequest:
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[len(texts)])
    request = oip.ModelInferRequest(model_name="g2p-en", id=id_ or str(draw.randrange(1000)), inputs=[tensor])
    encoded = [text.encode() for text in texts]
    if draw.random() < 0.5:
        request.raw_input_contents.append(b"".join(len(text).to_bytes(4, "little") + text for text in encoded))
    else:
        request.inputs[0].contents.bytes_contents.extend(encoded)
    parameters: dict[str, Any] = draw.choice(
        [
            {},
            {"beam_size": 4, "num_hypotheses": 2, "log_probabilities": True},
            {"sample": True, "seed": draw.getrandbits(60), "num_hypotheses": 3},
            {"min_new_tokens": 30, "max_new_tokens": 40, "tokens": True},
            {"stop_sequences": '["AE", "IY"]', "priority": "batch"},
        ]
    )
    for name, value in parameters.items():
        kind = {bool: "bool", int: "int64", str: "string"}[type(value)]
        setattr(request.parameters[name], f"{kind}_param", value)
    return request
