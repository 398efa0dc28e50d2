"""API keys: the file that lists them, the command that makes them, and what each of them may use."""

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dragoman_server.messages.api_error import key_limit
from dragoman_server.new_key import UsageError, add
from dragoman_server.security.keys import ApiKeys, OverLimitError, digest_of, new_key, read_entries
from dragoman_server.security.watched_files import FileError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_key_that_was_made_is_known_and_no_other(path: Path) -> None:
    speech, shop = add(path, "speech"), add(path, "shop")
    keys = ApiKeys(path)
    for key, name in ((speech, "speech"), (shop, "shop")):
        caller = keys.caller(key)
        assert caller is not None
        assert caller.entry.name == name
    for wrong in ("", speech[:-1], speech + "x", speech.upper(), new_key(), digest_of(speech).hex(), "Ж\udcff"):
        assert keys.caller(wrong) is None


def test_the_file_does_not_hold_the_key_and_is_for_its_owner(path: Path) -> None:
    key = add(path, "speech", "50", "8")
    assert key.startswith("dgm_")
    assert key not in path.read_text()
    assert digest_of(key).hex() in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    [entry] = read_entries(path.read_bytes(), "keys")
    assert (entry.name, entry.per_second, entry.at_once) == ("speech", 50, 8)
    assert read_entries(entry.line().encode(), "keys") == (entry,)


def test_a_key_is_an_administrator_s_where_its_line_says_so(path: Path) -> None:
    add(path, "a")
    add(path, "b", "5", admin=True)
    entries = read_entries(path.read_bytes(), "keys")
    assert [entry.admin for entry in entries] == [False, True]
    assert read_entries("\n".join(entry.line() for entry in entries).encode(), "keys") == entries


def test_a_key_is_added_behind_what_people_wrote(path: Path) -> None:
    path.write_text("# ours\n\n" + "a sha256:" + "0" * 64)
    path.chmod(0o640)
    add(path, "b")
    assert path.read_text().startswith("# ours\n\na sha256:")
    assert [entry.name for entry in read_entries(path.read_bytes(), "keys")] == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_to_the_file_stays_one(path: Path, tmp_path: Path) -> None:
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
def test_what_makes_no_sense_leaves_the_file_alone(
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
        ("a sha256:" + "0" * 64 + " canary=5", "only per_second=N, at_once=N and admin"),
        ("a sha256:" + "0" * 64 + " per_second=-5", "a number above 0"),
        ("canary! sha256:" + "0" * 64, "must begin with a name"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_not_quoted(line: str, words: str) -> None:
    with pytest.raises(FileError, match=rf"^line 2 of keys\.txt .*{words}") as error:
        read_entries(f"# one\n{line}\n".encode(), "keys.txt")
    assert "canary" not in str(error.value)


def test_the_rate_is_kept_over_time_and_a_second_s_worth_may_come_at_once(path: Path, clock: Clock) -> None:
    key = add(path, "a", per_second="4")
    keys = ApiKeys(path, clock)
    caller = keys.caller(key)
    assert caller is not None
    for _ in range(4):
        caller.begin(1)
    with pytest.raises(OverLimitError, match="4 requests per second") as refused:
        caller.begin(1)
    assert refused.value.retry_after == pytest.approx(0.25)
    assert refused.value.reason == "KEY_RATE"
    clock.now += refused.value.retry_after
    caller.begin(1)
    with pytest.raises(OverLimitError):
        caller.begin(1)
    clock.now += 1000  # saves up no more than a second's worth
    for _ in range(4):
        caller.begin(1)
    with pytest.raises(OverLimitError):
        caller.begin(1)


def test_a_large_batch_is_let_in_and_paid_off_by_what_follows(path: Path, clock: Clock) -> None:
    key = add(path, "a", per_second="10")
    caller = ApiKeys(path, clock).caller(key)
    assert caller is not None
    caller.begin(100)
    with pytest.raises(OverLimitError) as refused:
        caller.begin(1)
    assert refused.value.retry_after == pytest.approx(9.1)
    clock.now += 9.2
    caller.begin(1)


def test_a_rate_below_one_is_one_request_in_a_while(path: Path, clock: Clock) -> None:
    key = add(path, "a", per_second="0.1")
    caller = ApiKeys(path, clock).caller(key)
    assert caller is not None
    caller.begin(1)
    with pytest.raises(OverLimitError) as refused:
        caller.begin(1)
    assert refused.value.retry_after == pytest.approx(10)


@pytest.mark.parametrize(
    ("seconds", "words"), [(8.4e-05, "0.01"), (0.25, "0.25"), (0.251, "0.26"), (9.1, "9.10"), (1.5e6, "1500000.00")]
)
def test_the_time_to_wait_is_told_for_people(seconds: float, words: str) -> None:
    error = key_limit(OverLimitError("too many", "KEY_RATE", seconds))
    assert error.message == f"too many; retry in {words} s"


def test_calls_at_once_are_counted_from_begin_to_end(path: Path, clock: Clock) -> None:
    key = add(path, "a", at_once="2")
    caller = ApiKeys(path, clock).caller(key)
    assert caller is not None
    caller.begin(1)
    caller.begin(1)
    with pytest.raises(OverLimitError, match="2 calls at once") as refused:
        caller.begin(1)
    assert refused.value.reason == "KEY_CALLS"
    caller.end()
    caller.begin(1)


def test_a_changed_file_holds_at_once_and_forgets_no_use(path: Path, clock: Clock) -> None:
    kept, revoked = add(path, "kept", at_once="1"), add(path, "revoked")
    keys = ApiKeys(path, clock)
    caller = keys.caller(kept)
    assert caller is not None
    caller.begin(1)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "revoked" not in line).replace("at_once=1", "at_once=2"))
    added = add(path, "added")
    with capture_logs() as logs:
        assert keys.files.refresh()
        assert not keys.files.refresh()
    assert [each["event"] for each in logs] == ["files reloaded"]
    assert keys.caller(revoked) is None
    assert keys.caller(added) is not None
    assert keys.caller(kept) is caller
    assert (caller.running, caller.entry.at_once) == (1, 2)


def test_a_file_that_turned_bad_or_vanished_leaves_the_keys_as_they_were(path: Path) -> None:
    key = add(path, "a")
    keys = ApiKeys(path)
    with capture_logs() as logs:
        path.write_text(f"a {key}\n")
        assert not keys.files.refresh()
        assert not keys.files.refresh()
        path.unlink()
        assert not keys.files.refresh()
    assert keys.caller(key) is not None
    assert len(logs) == 2  # once for each state of things
    assert key not in str(logs)
    add(path, "b")
    assert keys.files.refresh()
    assert keys.caller(key) is None


def test_the_command_prints_the_key_alone(path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dragoman_server.new_key", str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("speech", "--per-second", "2.5", "--at-once", "3")
    assert (done.returncode, done.stderr) == (0, "")
    caller = ApiKeys(path).caller(done.stdout.removesuffix("\n"))
    assert caller is not None
    assert (caller.entry.name, caller.entry.per_second, caller.entry.at_once) == ("speech", 2.5, 3)
    again = run("speech")
    assert (again.returncode, again.stdout) == (2, "")
    taken = f"{path} already has a key named speech; delete its line first, or choose another name"
    assert again.stderr == f"dragoman_server.new_key: {taken}\n"
    path.write_text("speech\n")
    broken = run("shop")
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr.startswith(f"dragoman_server.new_key: line 1 of {path} must have sha256:")
