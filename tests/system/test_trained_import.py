"""A trained model from PyPI, imported through the same switches as published families, against PyTorch's own layers."""

import os
from pathlib import Path

import pytest
import torch

from dragoman import Client
from dragoman.local import LocalServer
from dragoman.results import Result
from dragoman_export.build import BuildInput, build
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.original import Original
from dragoman_training.data.batches import pad
from tests.reference.greedy import greedy
from tests.support.annalog import LONGEST, Annalog, DownloadError, InPyTorch, download, original

# Drugs and a few other molecules, of many lengths, with rings, charges and stereochemistry.
MOLECULES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O",
    "CN1CCC[C@H]1c1cccnc1",
    "NCCc1ccc(O)c(O)c1",
    "CCO",
    "Clc1ccc(cc1)C(c1ccc(Cl)cc1)C(Cl)(Cl)Cl",
    "CN(C)C(=N)NC(N)=N",
    "O=C(O)c1ccccc1O",
    "CC12CCC3C(CCC4=CC(=O)CCC34C)C1CCC2O",
    "Brc1ccccc1",
    "C[N+](C)(C)CC(=O)[O-]",
    "FC(F)(F)c1ccc(Oc2ccccc2)cc1",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "CCN(CC)CCNC(=O)c1ccc(N)cc1",
    "CS(=O)(=O)c1ccc(cc1)C1=C(C(=O)OC1)c1ccccc1",
    "C1CCCCC1",
    "N#Cc1ccccc1",
]


@pytest.fixture(scope="module")
def annalog(tmp_path_factory: pytest.TempPathFactory) -> Annalog:
    try:
        return download(tmp_path_factory.mktemp("annalog"))
    except DownloadError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def imported(annalog: Annalog) -> Original:
    return original(annalog, MOLECULES)


@pytest.fixture(scope="module")
def sources(imported: Original) -> list[list[int]]:
    tokens = imported.tokens
    encode = imported.source.tokenizer.encode
    return [[tokens.begin, *encode(molecule).ids, tokens.end] for molecule in MOLECULES]


@pytest.fixture(scope="module")
def answers(annalog: Annalog, imported: Original, sources: list[list[int]]) -> list[list[int]]:
    """PyTorch's greedy answers, one source at a time, so without padding."""
    theirs, end = InPyTorch(annalog), imported.tokens.end
    found = []
    for source in sources:
        ids = [imported.tokens.begin]
        while len(ids) < LONGEST and ids[-1] != end:
            ids.append(int(theirs(torch.tensor([source]), torch.tensor([ids]))[0, -1].argmax()))
        found.append([id_ for id_ in ids[1:] if id_ != end])
    return found


def test_every_weight_is_used_and_every_token_known(
    annalog: Annalog, imported: Original, sources: list[list[int]]
) -> None:
    weights = sum(parameter.numel() for parameter in imported.model.parameters())
    assert weights + len(annalog.tokens) == sum(tensor.numel() for tensor in annalog.weights.values())
    assert len(annalog.tokens) == 59
    assert not any(imported.tokens.unknown in source for source in sources)
    assert [imported.source.tokenizer.decode(source) for source in sources] == MOLECULES


@torch.no_grad()
def test_logits_and_answers_are_those_of_pytorch(
    annalog: Annalog, imported: Original, sources: list[list[int]], answers: list[list[int]]
) -> None:
    theirs, tokens = InPyTorch(annalog), imported.tokens
    source, target = pad(sources, tokens.pad), pad([[tokens.begin, *answer] for answer in answers], tokens.end)
    torch.testing.assert_close(imported.model(source, target), theirs(source, target), atol=1e-4, rtol=0)
    assert greedy(imported.model, sources, LONGEST - 1, [tokens.begin], tokens.end) == answers
    assert len({tuple(answer) for answer in answers}) == len(MOLECULES)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_graphs")
def test_server_answers_as_pytorch_does(imported: Original, answers: list[list[int]], tmp_path: Path) -> None:
    bundle, report = build(BuildInput(imported, tmp_path, ExportOptions("annalog", device="cpu"), lambda _: None))
    assert not report.failures
    with LocalServer("--bundle", str(bundle.path)) as server, Client(server.address) as client:
        results = client.generate_batch(MOLECULES, tokens=True)
        assert [
            [token.id for token in result.best.tokens] for result in results if isinstance(result, Result)
        ] == answers
