"""Source tokens that the model was not trained on: the answer says so, and they are counted."""

from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import MODEL, Face, letters, serve_fake

Q = letters().get_vocab()["q"]
METRIC = "dragoman_unseen_source_requests_total"


def ask(text: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text))


def counted(face: Face) -> float:
    return face.metric(METRIC, model=MODEL, version="1")


async def test_an_answer_names_the_places_and_is_counted() -> None:
    async with serve_fake(unseen=[Q]) as face:
        assert (await face.stub.Generate(ask("aqbq"))).unseen_source_tokens == [1, 3]
        assert counted(face) == 1
        given = pb.Input(token_ids=pb.TokenIds(ids=[Q]))
        assert (await face.stub.Generate(pb.GenerateRequest(input=given))).unseen_source_tokens == [0]
        assert counted(face) == 2
        assert not (await face.stub.Generate(ask("ab"))).unseen_source_tokens
        assert counted(face) == 2


async def test_batches_streams_and_scores_say_it_too() -> None:
    async with serve_fake(unseen=[Q]) as face:
        batch = pb.GenerateBatchRequest(inputs=[pb.Input(text=text) for text in ("q", "a", "aq")])
        answer = await face.stub.GenerateBatch(batch)
        assert [list(item.response.unseen_source_tokens) for item in answer.items] == [[0], [], [1]]
        messages = [message async for message in face.stub.GenerateStream(ask("bq"))]
        assert messages[-1].final.unseen_source_tokens == [1]
        assert counted(face) == 3
        score = pb.ScoreRequest(input=pb.Input(text="qa"), targets=[pb.Input(text="a")])
        assert (await face.stub.Score(score)).unseen_source_tokens == [0]


async def test_a_bundle_that_does_not_know_says_nothing() -> None:
    async with serve_fake() as face:
        assert not (await face.stub.Generate(ask("aq"))).unseen_source_tokens
        assert counted(face) == 0
