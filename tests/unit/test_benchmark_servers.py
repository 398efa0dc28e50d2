"""The servers that ours is compared with: the batches of the plain one, and what is asked of all."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.benchmark.servers.asyncio_server import MicroBatcher
from tests.benchmark.servers.inputs import SENTENCES
from tests.benchmark.servers.load import PROTOCOLS


def test_both_protocols_carry_the_text_and_the_limit_and_give_the_answer_back() -> None:
    asked = pb.GenerateRequest.FromString(PROTOCOLS["generate"].request("g2p", "naïve", 7))
    assert (asked.input.text, asked.options.max_new_tokens) == ("naïve", 7)
    inferred = oip.ModelInferRequest.FromString(PROTOCOLS["infer"].request("g2p", "naïve", 7))
    assert (inferred.model_name, inferred.parameters["max_new_tokens"].int64_param) == ("g2p", 7)
    assert inferred.raw_input_contents == [b"\x06\0\0\0na\xc3\xafve"]
    generated = pb.GenerateResponse(hypotheses=[pb.Hypothesis(text="né")]).SerializeToString()
    assert PROTOCOLS["generate"].text(generated) == "né"
    response = oip.ModelInferResponse(raw_output_contents=[b"\x03\0\0\0n\xc3\xa9"]).SerializeToString()
    assert PROTOCOLS["infer"].text(response) == "né"


def test_sentences_fit_the_base_shape() -> None:
    assert len(SENTENCES) == 128
    assert all(3 < source < 63 and 3 < target <= 64 for source, target in SENTENCES)


class Upper:
    """Translates into capitals, once it may, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.asked, self.may = threading.Event(), threading.Event()

    def translate(self, texts: Sequence[str], limits: Sequence[int]) -> list[str]:
        self.asked.set()
        self.may.wait(60)
        self.batches.append(list(texts))
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper()[:limit] for text, limit in zip(texts, limits, strict=True)]


async def test_a_batch_takes_in_what_waited_while_another_ran() -> None:
    upper = Upper()
    batcher = MicroBatcher(upper.translate, workers=1, most=3)
    calls = [asyncio.create_task(batcher.answer(text, 2)) for text in ("one", "two", "three", "four", "five")]
    assert await asyncio.to_thread(upper.asked.wait, 60)
    late = asyncio.create_task(batcher.answer("late", 9))
    await asyncio.sleep(0)
    upper.may.set()
    assert await asyncio.gather(*calls, late) == ["ON", "TW", "TH", "FO", "FI", "LATE"]
    assert upper.batches == [["one", "two", "three"], ["four", "five", "late"]]


async def test_a_batch_that_fails_or_is_not_waited_for_stops_nobody_else() -> None:
    upper = Upper()
    batcher = MicroBatcher(upper.translate, workers=1, most=2)
    bad, gone = (asyncio.create_task(batcher.answer(text, 9)) for text in ("bad", "gone"))
    assert await asyncio.to_thread(upper.asked.wait, 60)
    gone.cancel()
    upper.may.set()
    with pytest.raises(ValueError, match="bad"):
        await bad
    assert await batcher.answer("good", 9) == "GOOD"
