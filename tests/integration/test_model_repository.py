"""A real server whose models change, by hand and in the repository, sound and broken, while clients call."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from dragoman import AsyncClient, Client, DragomanError, HealthStatus, ModelState, NotFoundError, UnavailableError
from dragoman.cli.app import app
from dragoman.local import LocalServer, ServerStartError
from dragoman.retry import NO_RETRY
from tests.conftest import StartServer
from tests.integration.test_server_process import refuses_to_start
from tests.support.metrics_page import sum_of
from tests.support.waiting import until

POLL = ("--repository-poll-seconds", "0.1")
BY_HAND = ("--repository-poll-seconds", "0")


def put(bundle: Path, repository: Path, name: str, version: str) -> Path:
    """Copies a bundle under an ignored name, and renames it."""
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f".{version}"
    shutil.copytree(bundle, copy)
    return copy.rename(folder / version)


@pytest.fixture(scope="session")
def shouting(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the bundle with capitals in its target vocabulary, which makes its responses distinguishable."""
    bundle = tmp_path_factory.mktemp("shouting") / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    path = bundle / "target_tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word if word[0] == "<" else word.upper(): index for word, index in words.items()}
    path.write_text(json.dumps(tokenizer))
    manifest = json.loads((bundle / "manifest.json").read_text())
    content = path.read_bytes()
    manifest["files"][path.name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def damage(folder: Path) -> None:
    with (folder / "weights.bin").open("r+b") as weights:
        weights.seek(1000)
        weights.write(b"other")


@pytest.fixture
def repository(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Returns a repository of one model, `numbers`, with version 1."""
    folder = tmp_path / "models"
    put(tiny_bundle, folder, "numbers", "1")
    return folder


@pytest.fixture
def by_hand(start_server: StartServer, repository: Path) -> Iterator[tuple[LocalServer, Client]]:
    server = start_server("--model-repository", str(repository), *BY_HAND, "--engines", "1")
    with Client(server.address) as client:
        yield server, client


def states(client: Client) -> dict[str, ModelState]:
    return {f"{each.model}@{each.version}": each.state for each in client.repository_status().versions}


def test_versions_change_under_load_without_a_failed_call(
    start_server: StartServer, repository: Path, tiny_bundle: Path, shouting: Path
) -> None:
    """Versions with even numbers respond in capitals."""
    settings = repository / "repository.yaml"
    settings.write_text("models: {numbers: {aliases: {stable: 1}}}")
    server = start_server("--model-repository", str(repository), *POLL, "--engines", "1")
    answered: dict[str, set[str]] = {"numbers": set(), "numbers@stable": set(), "": set()}
    calls = dict.fromkeys(answered, 0)
    stop = threading.Event()

    def call(name: str) -> None:
        with Client(server.address, retry=NO_RETRY) as client:
            while not stop.is_set():
                stream = client.generate_stream("4207", model=name)
                said = "".join(piece.text for piece in stream)
                results = [client.generate("4207", model=name), stream.result()]
                results += client.generate_batch(["4207", "4207"], model=name)  # type: ignore[arg-type]
                for result in results:
                    even = int(result.model_version) % 2 == 0
                    assert (result.text, result.model) == (expected.upper() if even else expected, "numbers")
                    answered[name].add(result.model_version)
                assert said == results[1].text
                score = client.score("42", [[5, 6]], model=name)
                assert score.scores[0].tokens[0].text.isupper() == (int(score.model_version) % 2 == 0)
                calls[name] += 1

    with Client(server.address) as client, ThreadPoolExecutor() as clients:
        expected = client.generate("4207").text
        load = [clients.submit(call, name) for name in answered]
        try:
            for version in range(2, 6):
                put(tiny_bundle if version % 2 else shouting, repository, "numbers", str(version))
                until(lambda: str(version) in answered["numbers"])  # noqa: B023
                if version == 3:
                    damage(put(tiny_bundle, repository, "numbers", "7").parent / "7")
                    until(lambda: states(client).get("numbers@7") is ModelState.FAILED)
                if version == 4:
                    settings.write_text("models: {numbers: {aliases: {stable: 4}}}")
                    until(lambda: "4" in answered["numbers@stable"])
            before = dict(calls)
            until(lambda: all(calls[name] > before[name] for name in calls))
        finally:
            stop.set()
        for each in load:
            each.result()  # no call failed
        assert answered["numbers@stable"] == {"1", "4"}
        assert answered["numbers"] >= {"2", "3", "4", "5"}
        until(lambda: ModelState.RETIRING not in states(client).values())
        ready = {name for name, state in states(client).items() if state is ModelState.READY}
        assert ready == {"numbers@5", "numbers@4"}
    metrics = server.metrics()
    assert 'dragoman_model_load_failures_total{model="numbers"}' in metrics
    versions = {name.split('version="')[1].split('"')[0] for name in metrics if 'model="numbers",version="' in name}
    assert versions == {"5", "4"}
    until(lambda: sum(thread.startswith("engine") for thread in threads(server)) <= 2)


def test_a_long_call_finishes_on_the_version_that_started_it(
    by_hand: tuple[LocalServer, Client], repository: Path, shouting: Path
) -> None:
    _, client = by_hand
    expected = client.generate("4207").text
    with ThreadPoolExecutor() as other:
        long = other.submit(client.generate_batch, ["4207"] * 10_000)
        until(lambda: client.repository_status().versions[0].calls == 1)
        put(shouting, repository, "numbers", "2")
        client.reload_repository()
        assert client.generate("4207").text == expected.upper()
        assert states(client) == {"numbers@2": ModelState.READY, "numbers@1": ModelState.RETIRING}
        assert not long.done()
        assert {(each.text, each.model_version) for each in long.result()} == {(expected, "1")}  # type: ignore[union-attr]
    until(lambda: states(client)["numbers@1"] is ModelState.UNLOADED)


def threads(server: LocalServer) -> list[str]:
    """Names of the process's threads, where the machine tells."""
    return [
        Path(f"/proc/{server.process.pid}/task/{thread.id}/comm").read_text().strip()
        for thread in psutil.Process(server.process.pid).threads()
    ]


def test_memory_returns_after_a_version_is_unloaded(by_hand: tuple[LocalServer, Client]) -> None:
    server, client = by_hand
    process = psutil.Process(server.process.pid)

    def reload(times: int) -> None:
        for _ in range(times):
            client.load_model("numbers", again=True)
            client.generate_batch([str(number) for number in range(64)])
            client.score("42", ["forty two"])
            until(lambda: set(states(client).values()) == {ModelState.READY})
        until(lambda: sum_of(server, "dragoman_requests_in_flight", "GenerationService") == 0)

    reload(10)
    before, threads_before, files_before = process.memory_info().rss, process.num_threads(), process.num_fds()
    reload(50)
    # One load takes 10 MB and more; were only a tenth of it kept each time, it would be 50 MB.
    until(
        lambda: process.memory_info().rss < before + 12 * 2**20,
        otherwise=lambda: f"{(process.memory_info().rss - before) / 2**20:.0f} MiB more",
    )
    until(lambda: process.num_threads() <= threads_before + 2, otherwise=process.num_threads)
    until(lambda: process.num_fds() <= files_before + 2, otherwise=process.num_fds)


def test_a_slow_copy_is_loaded_once_it_is_complete(
    start_server: StartServer, repository: Path, tiny_bundle: Path
) -> None:
    server = start_server("--model-repository", str(repository), *POLL, "--engines", "1")
    with Client(server.address) as client:
        folder = repository / "numbers" / "2"
        folder.mkdir()
        for file in sorted(tiny_bundle.iterdir(), key=lambda file: file.name != "manifest.json"):
            content = file.read_bytes()
            for part in (content[: len(content) // 2], content[len(content) // 2 :]):
                with (folder / file.name).open("ab") as copy:
                    copy.write(part)
                time.sleep(0.15)
                assert client.generate("42").text
        until(lambda: client.generate("42").model_version == "2")


def test_a_swapped_volume_is_followed(start_server: StartServer, tiny_bundle: Path, tmp_path: Path) -> None:
    """Kubernetes updates a mount so: ..data is redirected to a new directory, and the old one is removed."""
    mount = tmp_path / "mount"
    put(tiny_bundle, mount / "..one", "numbers", "1")
    (mount / "..data").symlink_to("..one")
    (mount / "numbers").symlink_to("..data/numbers")
    server = start_server("--model-repository", str(mount), *POLL, "--engines", "1")
    with Client(server.address) as client:
        assert client.generate("42").model_version == "1"
        put(tiny_bundle, mount / "..two", "numbers", "2")
        (mount / "..new").symlink_to("..two")
        (mount / "..new").replace(mount / "..data")
        shutil.rmtree(mount / "..one")
        until(lambda: client.generate("42").model_version == "2")
        assert client.score("42", ["forty two"]).model_version == "2"


def test_an_administrator_loads_unloads_and_queries(
    by_hand: tuple[LocalServer, Client], repository: Path, tiny_bundle: Path
) -> None:
    _, client = by_hand
    put(tiny_bundle, repository, "digits", "1")
    assert [each.model for each in client.repository_status().versions] == ["numbers"]
    status = client.reload_repository()
    assert (status.path, status.problem) == (str(repository), "")
    assert [(each.model, each.state, each.device) for each in status.versions] == [
        ("digits", ModelState.READY, "cpu"),
        ("numbers", ModelState.READY, "cpu"),
    ]
    assert all(each.load_seconds > 0 and each.cache_bytes > 0 and each.engines == 1 for each in status.versions)
    with pytest.raises(DragomanError, match=r"no default model: name one of digits, numbers"):
        client.generate("42")
    assert client.health("model:digits") is HealthStatus.SERVING

    (unloaded,) = client.unload_model("digits")
    assert unloaded.held
    with pytest.raises(NotFoundError, match=r"'digits' is not served here; available: numbers"):
        client.generate("42", model="digits")
    assert client.health("model:digits") is HealthStatus.SERVICE_UNKNOWN
    client.reload_repository()
    assert client.health("model:digits") is HealthStatus.SERVICE_UNKNOWN
    loaded, *_ = client.load_model("digits")
    assert (loaded.state, loaded.held) == (ModelState.READY, False)
    assert client.generate("42", model="digits").model == "digits"

    with pytest.raises(NotFoundError, match="there is no model 'letters'"):
        client.load_model("letters")
    with pytest.raises(NotFoundError, match="there is no version '9' of model numbers"):
        client.unload_model("numbers@9")
    damage(put(tiny_bundle, repository, "digits", "2"))
    with pytest.raises(DragomanError, match=r"weights.bin was changed") as refused:
        client.load_model("digits")
    assert refused.value.code == "FAILED_PRECONDITION"
    assert client.generate("42", model="digits").model_version == "1"
    with pytest.raises(UnavailableError, match="version 2 of model digits could not be loaded"):
        client.generate("42", model="digits@2", timeout=1)
    (current, broken) = sorted(
        (each for each in client.models() if each.name == "digits"), key=lambda each: each.version
    )
    assert (current.state, current.current) == (ModelState.READY, True)
    assert (broken.state, "weights.bin was changed" in broken.problem) == (ModelState.FAILED, True)


def test_the_command_matches_the_client(by_hand: tuple[LocalServer, Client], repository: Path) -> None:
    server, _ = by_hand

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["admin", *arguments, "--address", server.address])
        return done.exit_code, done.output

    status, said = run("status")
    assert status == 0
    assert said.splitlines()[0] == f"models of {repository}"
    assert said.splitlines()[1].startswith("numbers@1  ready; default model; cpu, 1 x ")
    status, said = run("unload", "numbers")
    assert (status, said.count("\n"), "unloaded by hand" in said) == (0, 1, True)
    assert run("reload")[0] == 0
    status, said = run("load", "numbers", "--json")
    loaded, *_ = json.loads(said)
    assert (status, loaded["state"], loaded["current"]) == (0, "READY", True)
    status, said = run("load", "letters")
    assert status == 1
    assert "there is no model 'letters'" in said


def test_a_server_without_administration_has_no_such_service(start_server: StartServer, repository: Path) -> None:
    server = start_server("--model-repository", str(repository), "--no-admin", "--engines", "1")
    with Client(server.address) as client:
        assert client.generate("42").text
        with pytest.raises(DragomanError) as refused:
            client.repository_status()
        assert refused.value.code == "UNIMPLEMENTED"


def test_a_single_bundle_can_be_reloaded(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), "--engines", "1")
    with Client(server.address) as client:
        name, version = client.model().name, client.model().version
        assert client.generate("42", model=f"{name}@{version}").model_version == version
        loaded, *_ = client.load_model(name, again=True)
        assert (loaded.state, loaded.default) == (ModelState.READY, True)
        assert client.generate("42").text


def test_a_server_without_a_loadable_model_is_unready_and_waits(tiny_bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    damage(put(tiny_bundle, repository, "numbers", "1"))
    with pytest.raises(ServerStartError, match="was not serving in time"):
        LocalServer("--model-repository", str(repository), *BY_HAND, "--engines", "1", wait_seconds=5)


def test_an_invalid_repository_stops_the_start(repository: Path, tmp_path: Path) -> None:
    said = refuses_to_start("--model-repository", tmp_path / "nothing")
    assert said == f"model repository {tmp_path / 'nothing'} can't be opened: No such file or directory"
    (repository / "repository.yaml").write_text("models: {numbers: {max_rows: none}}")
    said = refuses_to_start("--model-repository", repository)
    assert said.startswith(f"{repository}/repository.yaml: models.numbers.max_rows is 'none'; expected a whole number")
    (repository / "repository.yaml").write_text("default: letters")
    said = refuses_to_start("--model-repository", repository)
    assert said == f"repository.yaml names letters, which {repository} does not contain"


async def test_the_asyncio_client_administers_too(start_server: StartServer, repository: Path) -> None:
    server = start_server("--model-repository", str(repository), *BY_HAND, "--engines", "1")
    async with AsyncClient(server.address) as client:
        (unloaded,) = await client.unload_model("numbers")
        assert unloaded.held
        loaded, *_ = await client.load_model("numbers")
        assert (loaded.state, loaded.aliases, loaded.current) == (ModelState.READY, (), True)
        for status in (await client.reload_repository(), await client.repository_status()):
            assert (status.path, status.versions[0].version) == (str(repository), "1")
