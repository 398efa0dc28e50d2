"""Scans of a model repository, its repository.yaml, and the default model."""

import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from dragoman_server.config import ServerConfig
from dragoman_server.messages.api_error import ApiError
from dragoman_server.models.manager import NotLoadedError
from dragoman_server.models.repository import Repository, RepositoryError
from dragoman_server.models.settings import (
    OPTIONS,
    All,
    Latest,
    ModelSettings,
    Pinned,
    RepositorySettings,
    SettingsError,
    options_of,
    read_settings,
)
from tests.support.fake_models import ManagerHarness


def bundle(folder: Path, content: bytes = b"12345") -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(content)
    manifest = {"files": {"weights.bin": {"bytes": len(content), "sha256": "0" * 64}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_models_and_versions_are_directories_and_hidden_ones_are_ignored(tmp_path: Path) -> None:
    for path in ("m/1", "m/candidate", "m/.copying", "..data/1", "n/2"):
        bundle(tmp_path / path)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "m" / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    found = Repository(tmp_path, ServerConfig()).scan().models
    assert {name: set(versions) for name, versions in found.items()} == {
        "m": {"1", "candidate"},
        "n": {"2"},
        "empty": set(),
    }
    assert not any(files.problem for versions in found.values() for files in versions.values())


def test_directories_with_invalid_names_are_logged_once(tmp_path: Path) -> None:
    for path in ("m/1", "m/new version", "bad name/1", "lost+found/1", ".hidden/1"):
        bundle(tmp_path / path)
    (tmp_path / "read me").write_text("")
    repository = Repository(tmp_path, ServerConfig())
    with capture_logs() as entries:
        found = [repository.scan().models for _ in range(2)]
    assert [{name: set(versions) for name, versions in models.items()} for models in found] == [{"m": {"1"}}] * 2
    assert [(entry["log_level"], entry["path"]) for entry in entries] == [
        ("warning", str(tmp_path / "bad name")),
        ("warning", str(tmp_path / "m" / "new version")),
    ]


def test_a_copy_is_complete_when_all_its_files_are(tmp_path: Path) -> None:
    repository = Repository(tmp_path, ServerConfig())
    folder = tmp_path / "m" / "1"

    def problem() -> str:
        return repository.scan().models["m"]["1"].problem

    folder.mkdir(parents=True)
    assert problem() == "manifest.json is missing"
    manifest = json.dumps({"files": {"weights.bin": {"bytes": 5}}})
    (folder / "manifest.json").write_text(manifest[:20])
    assert problem() == "manifest.json is incomplete"
    (folder / "manifest.json").write_text(manifest)
    assert problem() == "weights.bin is missing"
    (folder / "weights.bin").write_bytes(b"123")
    assert problem() == "weights.bin has 3 of 5 bytes"
    (folder / "weights.bin").write_bytes(b"12345")
    assert problem() == ""


def test_the_stamp_changes_when_a_file_is_written(tmp_path: Path) -> None:
    repository = Repository(tmp_path, ServerConfig())
    folder = bundle(tmp_path / "m" / "1")
    first = repository.scan().models["m"]["1"]
    assert repository.scan().models["m"]["1"] == first
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").write_bytes(b"54321")
    second = repository.scan().models["m"]["1"]
    assert second.content == first.content
    assert second.stamp != first.stamp


def test_a_swapped_volume_is_noticed(tmp_path: Path) -> None:
    """Kubernetes makes everything a link through ..data, which it replaces in one step."""
    bundle(tmp_path / "..one" / "1")
    bundle(tmp_path / "..two" / "1", b"other")
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "m").symlink_to("..data")
    repository = Repository(tmp_path, ServerConfig())
    before = repository.scan().models
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    after = repository.scan().models
    assert before.keys() == after.keys() == {"m"}
    assert before["m"]["1"].path == (tmp_path / "..one" / "1").resolve()
    assert after["m"]["1"].path == (tmp_path / "..two" / "1").resolve()
    assert before["m"]["1"].stamp != after["m"]["1"].stamp


def test_dangling_links_are_reported(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "m" / "1")
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("nothing")
    (tmp_path / "n").symlink_to("nothing")
    found = Repository(tmp_path, ServerConfig()).scan().models
    assert found.keys() == {"m"}
    assert found["m"]["1"].problem == "weights.bin is missing"


def test_a_repository_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"nothing can't be opened: No such file or directory"):
        Repository(tmp_path / "nothing", ServerConfig()).scan()
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryError, match=r"file can't be opened: Not a directory"):
        Repository(tmp_path / "file", ServerConfig()).scan()


def settings(tmp_path: Path, text: str) -> RepositorySettings:
    (tmp_path / "repository.yaml").write_text(text)
    return read_settings(tmp_path, ServerConfig())


def test_a_model_whose_directory_can_not_be_read_keeps_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("m/1", "n/1"):
        bundle(tmp_path / path)
    repository = Repository(tmp_path, ServerConfig())
    before = repository.scan()

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name == "m":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listed(folder)

    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", iterdir)
    bundle(tmp_path / "n" / "2")
    for _ in range(2):
        scan = repository.scan()
        assert scan.models["m"] == before.models["m"]
        assert set(scan.models["n"]) == {"1", "2"}
        assert scan.problem == f"{tmp_path / 'm'} can't be read: Stale file handle"
    monkeypatch.undo()
    assert repository.scan().problem == ""


def test_no_settings_and_empty_settings_are_the_same(tmp_path: Path) -> None:
    assert read_settings(tmp_path, ServerConfig()) == settings(tmp_path, "# nothing\n") == RepositorySettings()
    assert RepositorySettings().of("m") == ModelSettings(Latest(1), {}, {})


def test_everything_that_settings_may_say(tmp_path: Path) -> None:
    text = """
        default: a
        models:
          a: {versions: latest, aliases: {stable: 2, new: candidate}, max_rows: 4}
          b: {versions: {latest: 2}}
          c: {versions: all}
          d: {versions: [1, "1.10", candidate]}
          e:
    """
    assert settings(tmp_path, text) == RepositorySettings(
        "a",
        {
            "a": ModelSettings(Latest(1), {"stable": "2", "new": "candidate"}, {"max_rows": 4}),
            "b": ModelSettings(Latest(2)),
            "c": ModelSettings(All()),
            "d": ModelSettings(Pinned(frozenset({"1", "1.10", "candidate"}))),
            "e": ModelSettings(),
        },
    )


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "model-repository.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", manual, re.DOTALL)
    expected = ModelSettings(Latest(1), {"stable": "2"}, {"engines": 1, "max_rows": 16})
    assert settings(tmp_path, example) == RepositorySettings("g2p-en", {"g2p-en": expected})
    assert all(f"`{option}`" in manual for option in OPTIONS)


def test_a_model_overrides_options(tmp_path: Path) -> None:
    config = ServerConfig(max_rows=32, queue_size=7)
    own = options_of(config, ModelSettings(options={"max_rows": 4, "engines": 1}))
    assert (own.max_rows, own.engines, own.queue_size) == (4, 1, 7)
    assert options_of(config, ModelSettings()) is config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is not YAML"),
        ("[1]", "it must be a mapping"),
        ("modells: {}", "modells is not a known key; the keys here are default, models"),
        ("models: 0", "models must be a mapping"),
        ("models: {m: no}", "models.m must be a mapping"),
        ("models: {m: {aliases: []}}", "models.m.aliases must be a mapping"),
        ("default: [1]", "default: [1] is not a model name"),
        ("models: {../x: {}}", "models: '../x' is not a model name"),
        ("models: {m: {version: 1}}", "models.m.version is not a known key"),
        ("models: {m: {versions: 3}}", "models.m.versions: 3 is none of latest"),
        (
            "models: {m: {versions: 2026-05-03}}",
            "models.m.versions: 2026-05-03 (a date, unless it is in quotes) is none of",
        ),
        ("models: {m: {versions: [true]}}", "models.m.versions: true can't be a version"),
        ("models: {m: {versions: {latest: 0}}}", "models.m.versions: {'latest': 0} is none of latest"),
        ("models: {m: {versions: []}}", "models.m.versions: [] is none of latest"),
        ("models: {m: {versions: [1.10]}}", "models.m.versions: 1.1 is ambiguous as a version; write it in quotes"),
        ("models: {m: {versions: [2026-01-02]}}", '2026-01-02 is ambiguous as a version; write it in quotes, "2026-'),
        ("models: {m: {aliases: {7: 1}}}", "models.m.aliases: 7 can't be an alias"),
        ("models: {m: {aliases: {'7': 1}}}", "models.m.aliases: '7' can't be an alias"),
        ("models: {m: {aliases: {latest: 1}}}", "models.m.aliases: 'latest' can't be an alias"),
        ("models: {m: {aliases: {stable: ../1}}}", "models.m.aliases.stable: '../1' can't be a version"),
        ("models: {m: {port: 1}}", "models.m.port is not a known key"),
        ("models: {m: {max_rows: 0}}", "models.m.max_rows is 0; expected a whole number of at least 1"),
        ("models: {m: {max_rows: yes}}", "models.m.max_rows is true; expected a whole number of at least 1"),
        ("models: {m: {device: gpu}}", "models.m.device is 'gpu': "),
        ("models:\n  m: {}\n  n: {}\n  m: {}", "yaml:4: models.m is set twice, first at {}/repository.yaml:2"),
        ("default: m\ndefault: n", "yaml:2: default is set twice, first at {}/repository.yaml:1"),
        ("models: {m: {max_rows: 8, max_rows: 9}}", "yaml:1: models.m.max_rows is set twice, "),
        ("models: {m: {aliases: {a: 1, a: 2}}}", "yaml:1: models.m.aliases.a is set twice, "),
        ("models:\n  m:\n    versions: [9, 010]", "yaml:3: models.m.versions is 010, which YAML reads as 8; write 8, "),
        ("models: {m: {versions: [1_0]}}", 'is 1_0, which YAML reads as 10; write 10, or "1_0" for text'),
        ("models: {m: {versions: [1:30]}}", "models.m.versions is 1:30, which YAML reads as 90; "),
        ("models: {m: {aliases: {stable: 0b11}}}", "models.m.aliases.stable is 0b11, which YAML reads as 3; "),
        ("models: {m: {max_rows: 010}}", "models.m.max_rows is 010, which YAML reads as 8; "),
        ("default: \xff", "repository.yaml is not text in UTF-8"),
        ("default: *gone", "yaml:1: this is not YAML: found undefined alias"),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "repository.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError) as error:
        read_settings(tmp_path, ServerConfig())
    assert str(error.value).startswith(str(tmp_path / "repository.yaml"))
    assert problem.replace("{}", str(tmp_path)) in str(error.value)
    assert "\n" not in str(error.value)


def test_versions_may_be_quoted_and_long_numbers_grouped(tmp_path: Path) -> None:
    text = 'models: {m: {versions: ["010", 0, 12], queue_tokens: 262_144}}'
    expected = ModelSettings(Pinned(frozenset({"010", "0", "12"})), {}, {"queue_tokens": 262_144})
    assert settings(tmp_path, text).of("m") == expected


def test_a_yaml_alias_is_not_a_duplicate_key(tmp_path: Path) -> None:
    found = settings(tmp_path, "models: {m: &one {max_rows: 8}, n: *one, o: {<<: *one, engines: 1}}")
    assert [found.of(name).options.get("max_rows") for name in "mno"] == [8, 8, 8]


def test_invalid_settings_do_not_hide_the_models(tmp_path: Path) -> None:
    bundle(tmp_path / "m" / "1")
    (tmp_path / "repository.yaml").write_text("models: 3")
    scan = Repository(tmp_path, ServerConfig()).scan()
    assert scan.settings is None
    assert "models must be a mapping" in scan.problem
    assert scan.models.keys() == {"m"}


def test_missing_models_are_reported_and_a_missing_default_is_an_error(tmp_path: Path) -> None:
    bundle(tmp_path / "m" / "1")
    repository = Repository(tmp_path, ServerConfig())
    models = "models: {o: {}, m: {versions: [1, 2], aliases: {stable: 1, next: 3}}}"
    (tmp_path / "repository.yaml").write_text(models)
    scan = repository.scan()
    assert scan.problem == f"repository.yaml names m@2, m@3, o, which {tmp_path} does not contain"
    assert scan.settings is not None
    (tmp_path / "repository.yaml").write_text(f"default: n\n{models}")
    scan = repository.scan()
    assert scan.problem == f"repository.yaml names m@2, m@3, n, o, which {tmp_path} does not contain"
    assert scan.settings is None
    assert scan.models.keys() == {"m"}
    bundle(tmp_path / "n" / "1")
    scan = repository.scan()
    assert scan.settings is not None
    assert scan.settings.default == "n"


def test_a_bundle_and_a_repository_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"--bundle and --model-repository are mutually exclusive"):
        ServerConfig(bundle=tmp_path, model_repository=tmp_path)


def fake_bundles(folder: Path, *versions: str) -> Repository:
    """Makes a repository with versions, NAME/VERSION, for FakeEngines."""
    for version in versions:
        (folder / version).mkdir(parents=True)
        (folder / version / "manifest.json").write_text('{"files": {}}')
    return Repository(folder, ServerConfig())


async def test_a_missing_default_is_refused_and_the_previous_one_stays(tmp_path: Path) -> None:
    settings = tmp_path / "repository.yaml"
    harness = ManagerHarness(fake_bundles(tmp_path, "m/1", "n/1"))
    settings.write_text("default: zz")
    with pytest.raises(RepositoryError, match=r"^repository.yaml names zz, which "):
        await harness.manager.start()
    settings.write_text("default: n")
    await harness.manager.start()
    settings.write_text("default: zz")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names zz"):
        await harness.manager.reload()
    assert harness.answers() == "n@1"
    fake_bundles(tmp_path, "zz/1")
    await harness.manager.reload()
    assert harness.answers() == "zz@1"


async def test_the_only_model_stays_the_default_if_the_named_one_is_missing(tmp_path: Path) -> None:
    harness = ManagerHarness(fake_bundles(tmp_path, "m/1"))
    await harness.manager.start()
    (tmp_path / "repository.yaml").write_text("default: zz")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names zz"):
        await harness.manager.reload()
    assert harness.answers() == "m@1"


async def test_a_removed_default_is_named_in_the_error_and_other_models_go_on(tmp_path: Path) -> None:
    harness = ManagerHarness(fake_bundles(tmp_path, "m/1", "n/1"))
    (tmp_path / "repository.yaml").write_text("default: n")
    await harness.manager.start()
    (tmp_path / "n").rename(tmp_path / ".n")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names n, which "):
        await harness.manager.reload()
    assert harness.answers("m") == "m@1"
    with pytest.raises(ApiError, match=r"^the default model, n, does not exist now: name one of m$") as missed:
        harness.registry.find("")
    assert missed.value.code is grpc.StatusCode.UNAVAILABLE
    (tmp_path / ".n").rename(tmp_path / "n")
    await harness.manager.reload()
    assert harness.answers() == "n@1"
