"""Source tokens that the model was not trained on: the answer says so, and they are counted."""

from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import MODEL, FakeServer, letters, serve_fake

Q = letters().get_vocab()["q"]
METRIC = "dragoman_unseen_source_requests_total"


def ask(text: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text))


def counted(server: FakeServer) -> float:
    return server.metric(METRIC, model=MODEL, version="1")


async def test_an_answer_names_the_places_and_is_counted() -> None:
    async with serve_fake(unseen=[Q]) as server:
        assert (await server.stub.Generate(ask("aqbq"))).unseen_source_tokens == [1, 3]
        assert counted(server) == 1
        given = pb.Input(token_ids=pb.TokenIds(ids=[Q]))
        assert (await server.stub.Generate(pb.GenerateRequest(input=given))).unseen_source_tokens == [0]
        assert counted(server) == 2
        assert not (await server.stub.Generate(ask("ab"))).unseen_source_tokens
        assert counted(server) == 2


async def test_batches_streams_and_scores_say_it_too() -> None:
    async with serve_fake(unseen=[Q]) as server:
        batch = pb.GenerateBatchRequest(inputs=[pb.Input(text=text) for text in ("q", "a", "aq")])
        answer = await server.stub.GenerateBatch(batch)
        assert [list(item.response.unseen_source_tokens) for item in answer.items] == [[0], [], [1]]
        messages = [message async for message in server.stub.GenerateStream(ask("bq"))]
        assert messages[-1].final.unseen_source_tokens == [1]
        assert counted(server) == 3
        score = pb.ScoreRequest(input=pb.Input(text="qa"), targets=[pb.Input(text="a")])
        assert (await server.stub.Score(score)).unseen_source_tokens == [0]


async def test_a_bundle_that_does_not_know_says_nothing() -> None:
    async with serve_fake() as server:
        assert not (await server.stub.Generate(ask("aq"))).unseen_source_tokens
        assert counted(server) == 0
