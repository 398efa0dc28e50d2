"""API keys: the file that lists them, the command that generates them, and what each key may do."""

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from structlog.testing import capture_logs

import dragoman_server.new_key as new_key_command
from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.auth import CALLER, Authenticator
from dragoman_server.messages.api_error import ApiError, key_limit
from dragoman_server.new_key import UsageError, add
from dragoman_server.security.keys import ApiKeys, Caller, OverLimitError, digest_of, new_key, read_entries
from dragoman_server.security.watched_files import FileError
from tests.support.clock import Clock
from tests.support.waiting import until_async

GENERATE = "dragoman.v1.GenerationService/Generate"
LOAD = "inference.GRPCInferenceService/RepositoryModelLoad"
STREAM = "inference.GRPCInferenceService/ModelStreamInfer"
HASH = "sha256:" + "0" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def caller_of(keys: ApiKeys, key: str) -> Caller:
    caller = keys.caller(key)
    assert caller is not None
    return caller


def over_limit(caller: Caller) -> OverLimitError:
    with pytest.raises(OverLimitError) as error:
        caller.begin(1)
    return error.value


def test_a_generated_key_is_known_and_no_other(path: Path) -> None:
    speech, shop = add(path, "speech"), add(path, "shop")
    keys = ApiKeys(path)
    assert [caller_of(keys, key).entry.name for key in (speech, shop)] == ["speech", "shop"]
    for wrong in ("", speech[:-1], speech + "x", speech.upper(), new_key(), digest_of(speech).hex(), "Ж\udcff"):
        assert keys.caller(wrong) is None


def test_keys_generated_at_once_are_all_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = new_key_command._replace

    def slow(*arguments: Any) -> None:
        time.sleep(0.02)
        replace(*arguments)

    monkeypatch.setattr(new_key_command, "_replace", slow)
    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(lambda number: add(path, f"team-{number}"), range(8)))
    assert all(ApiKeys(path).caller(key) for key in keys)


def test_the_file_has_the_hash_and_is_private(path: Path) -> None:
    key = add(path, "speech", "50", "8")
    add(path, "ops", "5", admin=True)
    assert key.startswith("dgm_")
    assert key not in path.read_text()
    assert digest_of(key).hex() in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    entries = read_entries(path.read_bytes(), "keys")
    assert [(entry.name, entry.per_second, entry.at_once, entry.admin) for entry in entries] == [
        ("speech", 50, 8, False),
        ("ops", 5, None, True),
    ]
    assert read_entries("\n".join(entry.line() for entry in entries).encode(), "keys") == entries


def test_a_key_is_appended_to_the_existing_file(path: Path) -> None:
    path.write_text(f"# ours\n\na {HASH}")
    path.chmod(0o640)
    add(path, "b")
    assert path.read_text().startswith("# ours\n\na sha256:")
    assert [entry.name for entry in read_entries(path.read_bytes(), "keys")] == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_stays_that_of_the_server_s_user(path: Path) -> None:
    path.touch(0o600)
    os.chown(path, 1234, 5678)
    add(path, "a")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1234, 5678, 0o600)


def test_a_file_that_can_not_be_replaced_leaves_nothing_beside_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(FileError, match=r"keys\.txt can't be changed: No space left on device"):
        add(path, "a")
    assert list(path.parent.iterdir()) == []


def test_a_symbolic_link_to_the_file_is_kept(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path.symlink_to("real/keys.txt")
    (tmp_path / "real" / "keys.txt").touch()
    add(path, "a")
    assert path.is_symlink()
    assert [entry.name for entry in read_entries(path.read_bytes(), "keys")] == ["a"]


@pytest.mark.parametrize(
    ("name", "per_second", "at_once", "words"),
    [
        ("two words", None, None, "NAME must be"),
        ("#", None, None, "NAME must be"),
        ("taken", None, None, r"keys\.txt already has a key named taken"),
        ("new", "0", None, "the new line must have a number above 0 in per_second="),
        ("new", "many", None, "a number above 0 in per_second="),
        ("new", None, "1.5", "a whole number in at_once="),
        ("new", "nan", None, "a number above 0 in per_second="),
    ],
)
def test_invalid_arguments_leave_the_file_unchanged(
    path: Path, name: str, per_second: str | None, at_once: str | None, words: str
) -> None:
    add(path, "taken")
    before = path.read_text()
    with pytest.raises(UsageError, match=words):
        add(path, name, per_second, at_once)
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("canary", "64 hexadecimal digits"),
        ("a sha256:canary", "64 hexadecimal digits"),
        ("a " + "0" * 64, "64 hexadecimal digits"),
        (f"a {HASH} canary=5", "only per_second=N, at_once=N and admin"),
        (f"a {HASH} per_second=-5", "a number above 0"),
        (f"canary! {HASH}", "must begin with a name"),
        (f"b {HASH}", "repeats the key of an earlier line"),
        (f"canary sha256:{'1' * 64}", "repeats the name of an earlier line"),
    ],
)
def test_an_invalid_line_is_named_by_its_number_and_not_quoted(line: str, words: str) -> None:
    with pytest.raises(FileError, match=rf"^line 2 of keys\.txt .*{words}") as error:
        read_entries(f"canary {HASH}\n{line}\n".encode(), "keys.txt")
    assert "canary" not in str(error.value)


def caller_with(path: Path, clock: Clock, per_second: str | None = None, at_once: str | None = None) -> Caller:
    key = add(path, "a", per_second, at_once)
    return caller_of(ApiKeys(path, clock), key)


def test_the_rate_is_an_average_with_bursts_of_one_second(path: Path, clock: Clock) -> None:
    caller = caller_with(path, clock, per_second="4")
    for _ in range(4):
        caller.begin(1)
    error = over_limit(caller)
    assert "4 requests per second" in str(error)
    assert error.retry_after == pytest.approx(0.25)
    assert error.reason == "KEY_RATE"
    clock.now += error.retry_after
    caller.begin(1)
    over_limit(caller)
    clock.now += 1000  # at most one second's worth is saved up
    for _ in range(4):
        caller.begin(1)
    over_limit(caller)


@pytest.mark.parametrize(("rate", "requests", "seconds"), [("10", 100, 9.1), ("0.1", 1, 10)])
def test_a_large_batch_or_a_low_rate_is_let_in_and_paid_off_later(
    path: Path, clock: Clock, rate: str, requests: int, seconds: float
) -> None:
    caller = caller_with(path, clock, per_second=rate)
    caller.begin(requests)
    assert over_limit(caller).retry_after == pytest.approx(seconds)
    clock.now += seconds
    caller.begin(1)


@pytest.mark.parametrize(
    ("seconds", "words"), [(8.4e-05, "0.01"), (0.25, "0.25"), (0.251, "0.26"), (9.1, "9.10"), (1.5e6, "1500000.00")]
)
def test_the_delay_is_rounded_up_to_hundredths(seconds: float, words: str) -> None:
    error = key_limit(OverLimitError("too many", "KEY_RATE", seconds))
    assert error.message == f"too many; retry in {words} s"


def test_concurrent_calls_are_counted_from_begin_to_end(path: Path, clock: Clock) -> None:
    caller = caller_with(path, clock, at_once="2")
    caller.begin(1)
    caller.begin(1)
    error = over_limit(caller)
    assert "2 calls at once" in str(error)
    assert error.reason == "KEY_CALLS"
    caller.end()
    caller.begin(1)


def test_a_changed_file_takes_effect_and_keeps_the_counts(path: Path, clock: Clock) -> None:
    kept, revoked = add(path, "kept", at_once="1"), add(path, "revoked")
    keys = ApiKeys(path, clock)
    caller = caller_of(keys, kept)
    caller.begin(1)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "revoked" not in line).replace("at_once=1", "at_once=2"))
    added = add(path, "added")
    with capture_logs() as logs:
        assert keys.files.refresh()
        assert not keys.files.refresh()
    assert [entry["event"] for entry in logs] == ["files reloaded"]
    assert keys.caller(revoked) is None
    assert keys.caller(added) is not None
    assert keys.caller(kept) is caller
    assert (caller.running, caller.entry.at_once) == (1, 2)


def test_a_file_that_became_invalid_or_vanished_keeps_the_keys(path: Path) -> None:
    key = add(path, "a")
    keys = ApiKeys(path)
    with capture_logs() as logs:
        path.write_text(f"a {key}\n")
        assert not keys.files.refresh()
        assert not keys.files.refresh()
        path.unlink()
        assert not keys.files.refresh()
    assert keys.caller(key) is not None
    assert len(logs) == 2  # once for each problem
    assert key not in str(logs)
    add(path, "b")
    assert keys.files.refresh()
    assert keys.caller(key) is None


def test_the_command_prints_only_the_key(path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dragoman_server.new_key", str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("speech", "--per-second", "2.5", "--at-once", "3")
    assert (done.returncode, done.stderr) == (0, "")
    entry = caller_of(ApiKeys(path), done.stdout.removesuffix("\n")).entry
    assert (entry.name, entry.per_second, entry.at_once) == ("speech", 2.5, 3)
    again = run("speech")
    assert (again.returncode, again.stdout) == (2, "")
    taken = f"{path} already has a key named speech; delete its line first, or choose another name"
    assert again.stderr == f"dragoman_server.new_key: {taken}\n"
    path.write_text("speech\n")
    broken = run("shop")
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr.startswith(f"dragoman_server.new_key: line 1 of {path} must have sha256:")


class Context:
    """A ServicerContext with metadata."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


class Door:
    """An authenticator with three keys."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.keys = {"plain": add(path, "plain"), "ops": add(path, "ops", admin=True)}
        self.keys["slow"] = add(path, "slow", per_second="10")
        self.authenticator = Authenticator(ApiKeys(path, clock))

    def call(self, name: str, method: str = GENERATE, request: Any = None) -> Any:
        context = Context(("user-agent", "x"), ("authorization", f"Bearer {self.keys[name]}"))
        return self.authenticator.call(method, request or pb.GenerateRequest(), cast("Any", context))

    def refused(self, name: str, method: str = GENERATE) -> grpc.StatusCode:
        with pytest.raises(ApiError) as error, self.call(name, method):
            pass
        return error.value.code


@pytest.fixture
def door(path: Path, clock: Clock) -> Iterator[Door]:
    yield Door(path, clock)
    CALLER.set(None)  # a server has a context per call; these tests share one with later tests


def test_a_call_is_identified_by_its_key(door: Door) -> None:
    with door.call("plain") as request:
        assert request == pb.GenerateRequest()
        assert CALLER.get() == "plain"
    key = door.keys["plain"]
    for value in (key, f"Basic {key}", "Bearer", "Bearer ", f"Bearer {key} {key}", f"Bearer {key}".encode() + b"\xff"):
        context = cast("Any", Context(("authorization", value)))
        with pytest.raises(ApiError) as error, door.authenticator.call(GENERATE, None, context):
            pass
        assert error.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert key not in error.value.message
    with door.authenticator.call(GENERATE, None, cast("Any", Context(("authorization", f"bearer  {key}")))):
        pass


def test_only_an_administrator_s_key_loads_and_unloads(door: Door) -> None:
    for method in (LOAD, "dragoman.v1.AdminService/UnloadModel"):
        assert door.refused("plain", method) is grpc.StatusCode.PERMISSION_DENIED
        with door.call("ops", method):
            pass
    with door.call("ops"):
        pass


@pytest.mark.parametrize(
    "request_",
    [
        pb.GenerateBatchRequest(inputs=[pb.Input(text="a")] * 50),
        oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(name="text", shape=[5, 10])]),
    ],
    ids=["batch", "tensor"],
)
def test_each_input_of_a_batch_counts_as_a_request(door: Door, request_: Any) -> None:
    with door.call("slow", request=request_):
        pass
    door.clock.now += 4
    assert door.refused("slow") is grpc.StatusCode.RESOURCE_EXHAUSTED
    door.clock.now += 0.2
    with door.call("slow"):
        pass


@pytest.mark.parametrize(
    "shape", [[], [0], [-7], [2**40, 2**40], [2**63 - 1] * 100_000], ids=lambda shape: f"{len(shape)} dimensions"
)
def test_a_tensor_with_a_false_shape_has_a_bounded_cost(door: Door, shape: list[int]) -> None:
    request = oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(name="text", shape=shape)])
    for _ in range(10):
        door.clock.now += 10_000_000
        with door.call("slow", request=request):
            pass


async def test_requests_of_a_stream_are_read_at_the_rate_of_the_key(door: Door) -> None:
    async def messages() -> AsyncIterator[oip.ModelInferRequest]:
        for number in range(12):
            yield oip.ModelInferRequest(id=str(number))

    taken: list[str] = []

    async def take() -> None:
        with door.call("slow", STREAM, messages()) as admitted:
            async for message in admitted:
                taken.append(message.id)  # noqa: PERF401  # inspected while it grows

    task = asyncio.create_task(take())
    await until_async(lambda: len(taken) >= 10)
    assert taken == [str(number) for number in range(10)]
    door.clock.now += 0.2
    await asyncio.wait_for(task, 10)
    assert taken == [str(number) for number in range(12)]


async def test_items_of_a_call_count_one_by_one_and_cancellations_not_at_all(door: Door) -> None:
    async def messages() -> AsyncIterator[pb.GenerateManyRequest]:
        for number in range(4):
            yield pb.GenerateManyRequest(items=[pb.ManyItem(id=f"{number}.{place}") for place in range(5)])
            yield pb.GenerateManyRequest(cancel=["x"])

    taken: list[str] = []

    async def take() -> None:
        with door.call("slow", "dragoman.v1.GenerationService/GenerateMany", messages()) as admitted:
            async for message in admitted:
                taken.extend(item.id for item in message.items)
                taken.extend(message.cancel)

    task = asyncio.create_task(take())
    await until_async(lambda: len(taken) >= 12)
    assert [*map(len, taken)] == [*[3] * 5, 1, *[3] * 5, 1]
    door.clock.now += 0.5
    await until_async(lambda: len(taken) >= 18)
    door.clock.now += 0.5
    await asyncio.wait_for(task, 10)
    assert len(taken) == 24


def test_without_keys_or_for_health_checks_everyone_is_let_in(door: Door) -> None:
    request = pb.GenerateRequest()
    for authenticator, method in ((Authenticator(), LOAD), (door.authenticator, "grpc.health.v1.Health/Check")):
        with authenticator.call(method, request, cast("Any", Context())) as admitted:
            assert admitted is request
