"""The server's configuration: precedence of the sources, errors, and what is shown."""

from pathlib import Path
from typing import Literal

import pytest
import typer
import yaml
from pydantic import ByteSize, Field, SecretStr, field_validator
from typer.testing import CliRunner

from dragoman.cli.app import app as client
from dragoman_server.bundle.load import load_manifest
from dragoman_server.config import ServerConfig
from dragoman_server.config.devices import EXPECTED as DEVICES
from dragoman_server.config.fields import expectation, placeholder
from dragoman_server.config.options import PANELS
from dragoman_server.config.show import chosen, lines
from dragoman_server.config.sources import ConfigError, configure
from dragoman_server.messages.limits import request_limits
from dragoman_server.process.cli import MANUAL, app
from dragoman_server.process.connections import server_options
from tests.support.bundles import SHIPPED_G2P

DEFAULTS = ServerConfig()


class Extended(ServerConfig):
    """Adds options of types that ServerConfig may not have."""

    token: SecretStr | None = None
    pin: SecretStr | None = Field(default=None, min_length=4)
    size: ByteSize | None = None
    level: float = Field(default=0.5, gt=0, lt=1)
    names: tuple[str, ...] = ()
    even: int = 2
    only: Literal["this"] = "this"

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an odd number will not do")
        return value


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def yaml_file(text: str | bytes, name: str = "server.yaml") -> Path:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Path(name)


def refusal(
    text: str | bytes | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, str | bool] | None = None,
    kind: type[ServerConfig] = ServerConfig,
) -> str:
    with pytest.raises(ConfigError) as error:
        configure(flags or {}, environment or {}, None if text is None else yaml_file(text), kind)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_without_sources_all_options_have_their_defaults() -> None:
    configuration = configure({}, {"PATH": "/bin", "DRAGOMAN": "x"})
    assert configuration.config == DEFAULTS
    assert configuration.origins == {}


def test_variables_of_the_client_are_ignored() -> None:
    main = typer.main.get_command(client)
    commands = [main, *getattr(main, "commands", {}).values()]
    variables = {parameter.envvar for command in commands for parameter in command.params if parameter.envvar}
    assert "DRAGOMAN_ADDRESS" in variables
    assert configure({}, dict.fromkeys(variables, "x")).config == DEFAULTS


def test_flags_override_the_environment_which_overrides_the_file() -> None:
    file = yaml_file("# comment\nport: 1\nmax_rows: 1\n\nqueue_size: 1\n")
    configuration = configure({"port": "3"}, {"DRAGOMAN_MAX_ROWS": "2", "DRAGOMAN_PORT": "2"}, file)
    config = configuration.config
    assert (config.port, config.max_rows, config.queue_size) == (3, 2, 1)
    assert config.host == DEFAULTS.host
    origins = {"port": "--port", "max_rows": "DRAGOMAN_MAX_ROWS", "queue_size": "server.yaml:5"}
    assert configuration.origins == origins


def test_a_flag_overrides_the_file_named_by_the_environment() -> None:
    first, second = yaml_file("port: 1", "first.yaml"), yaml_file("port: 2", "second.yaml")
    environment = {"DRAGOMAN_CONFIG": str(first)}
    assert configure({}, environment).config.port == 1
    assert configure({}, environment, second).config.port == 2


@pytest.mark.parametrize("text", ["", "# only comments\n", "---\n", "\ufeff# with a mark\n", "{}"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    assert configure({}, {}, yaml_file(text)).config == DEFAULTS


def test_values_are_converted_to_the_options_types() -> None:
    environment = {"DRAGOMAN_DRAIN_SECONDS": "2.5", "DRAGOMAN_REFLECTION": "false", "DRAGOMAN_LOG_LEVEL": "debug"}
    config = configure({"engines": "2"}, environment, yaml_file('host: "::1"\ndevice: cpu\nmax_rows: 0x10')).config
    assert (config.drain_seconds, config.reflection, config.log_level) == (2.5, False, "debug")
    assert (config.engines, config.host, config.device, config.max_rows) == (2, "::1", "cpu", 16)


def test_null_restores_the_default() -> None:
    file = yaml_file("engines: 2\nthreads_per_engine: 2\nbundle: null")
    config = configure({"engines": "null"}, {"DRAGOMAN_THREADS_PER_ENGINE": "null"}, file).config
    assert (config.engines, config.threads_per_engine) == (None, None)
    assert config.bundle is None


def test_paths_in_a_file_are_relative_to_it_and_others_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = yaml_file("bundle: models/one\n", "etc/server.yaml")
    assert configure({}, {}, file).config.bundle == tmp_path / "etc" / "models" / "one"
    assert configure({}, {}, yaml_file("bundle: /models/one")).config.bundle == Path("/models/one")
    assert configure({"bundle": "models/one"}, {}).config.bundle == Path("models/one")
    assert configure({}, {"DRAGOMAN_BUNDLE": "models/one"}).config.bundle == Path("models/one")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("max_rows: 0", "max_rows is 0; expected a whole number of at least 1"),
        ("max_rows: many", "max_rows is 'many'; expected a whole number of at least 1"),
        ("max_rows: 1.5", "max_rows is 1.5; expected a whole number of at least 1"),
        ("max_rows: true", "max_rows is true; expected a whole number of at least 1"),
        ("queue_size:", "queue_size is null; expected a whole number of at least 1"),
        ("max_rows: [1, 2]", "max_rows is [1, 2]; expected a whole number of at least 1"),
        ("max_rows: {a: 1}", "max_rows is {a: 1}; expected a whole number of at least 1"),
        ("port: 65536", "port is 65536; expected a whole number from 0 to 65535"),
        ("engines: -1", "engines is -1; expected a whole number from 1 to 256"),
        ("drain_seconds: .nan", "drain_seconds is .nan; expected a number of at least 0"),
        ("drain_seconds: .inf", "drain_seconds is .inf; expected a number of at least 0"),
        ("max_connection_age_seconds: 0", "max_connection_age_seconds is 0; expected a number from 0.001 to 1728000"),
        ("hang_seconds: 0.0000001", "hang_seconds is 1.0e-07; expected a number of at least 0.01"),
        ("port: 010", 'port is 010, which YAML reads as 8; write 8, or "010" for text'),
        ("port: 12:30", 'port is 12:30, which YAML reads as 750; write 750, or "12:30" for text'),
        ("host: 12:30.5", 'host is 12:30.5, which YAML reads as 750.5; write 750.5, or "12:30.5" for text'),
        ("device: gpu", f"device is 'gpu': {DEVICES}"),
        ("device: cuda:0,cpu", f"device is 'cuda:0,cpu': {DEVICES}"),
        ("device: cuda:1,cuda:01", f"device is 'cuda:1,cuda:01': {DEVICES}"),
        ('device: "cuda:"', f"device is 'cuda:': {DEVICES}"),
        ("workers: 0", "workers is 0; expected a whole number from 1 to 64"),
        ("log_level: off", "log_level is false; expected debug, info, warning or error"),
        ("reflection: maybe", "reflection is 'maybe'; expected true or false"),
        ("host: 1", "host is 1; expected text"),
        ('host: ""', "host is ''; expected text"),
        ('bundle: ""', "bundle is ''; expected a path"),
        ("bundle: 3", "bundle is 3; expected a path"),
    ],
)
def test_a_wrong_value_in_a_file_is_refused_with_its_line(value: str, sentence: str) -> None:
    assert refusal(f"metrics_port: 5\n{value}\n") == f"server.yaml:2: {sentence}"


WHOLE = "expected a whole number of at least 1"
LIST = "`dragoman-serve --print-config` lists all options"


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        ("DRAGOMAN_MAX_ROWS", "many", f"is 'many'; {WHOLE}"),
        ("DRAGOMAN_MAX_ROWS", "", f"is ''; {WHOLE}"),
        ("DRAGOMAN_API_KEYS", "", "is ''; expected a path"),
        ("DRAGOMAN_HOST", "\udcff", r"is '\udcff'; expected text"),
        ("DRAGOMAN_MAX_ROW", "3", "is not an option; did you mean DRAGOMAN_MAX_ROWS?"),
        ("DRAGOMAN_port", "3", "is not an option; did you mean DRAGOMAN_PORT?"),
        ("DRAGOMAN_CONFG", "x", "is not an option; did you mean DRAGOMAN_CONFIG?"),
        ("DRAGOMAN_ZZZ", "secret", f"is not an option; {LIST}"),
    ],
)
def test_wrong_variables_are_refused(variable: str, value: str, error: str) -> None:
    assert refusal(environment={variable: value}) == f"{variable} {error}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\nmax-rows: 3", "server.yaml:2: max-rows is not an option; did you mean max_rows?"),
        ("Port: 3", "server.yaml:1: Port is not an option; did you mean port?"),
        ("zzz: 3", f"server.yaml:1: zzz is not an option; {LIST}"),
        ("config: other.yaml", "server.yaml:1: config is not an option; "),
        ('"a\\nb": 3', rf"server.yaml:1: 'a\nb' is not an option; {LIST}"),
        ("? [a]\n: 3", f"server.yaml:1: a list or mapping is not an option; {LIST}"),
        ("size: 3 parsecs", "server.yaml:1: size is '3 parsecs'; expected a size such as 512MiB"),
        ("level: 1", "server.yaml:1: level is 1; expected a number above 0 below 1"),
        ("only: that", "server.yaml:1: only is 'that'; expected this"),
        ("names: 3", "server.yaml:1: names is 3: "),
        ("even: 3", "server.yaml:1: even is 3: an odd number will not do"),
    ],
)
def test_unknown_keys_and_values_of_other_types_are_refused(text: str, error: str) -> None:
    assert refusal(text, kind=Extended).startswith(error)


def test_wrong_flags_are_refused() -> None:
    assert refusal(flags={"max_rows": "0"}) == f"--max-rows is '0'; {WHOLE}"
    assert refusal(flags={"host": ""}) == "--host is ''; expected text"
    long = refusal(flags={"max_rows": "9" * 5000})
    assert long.startswith("--max-rows is '999")
    assert len(long) < 200


def test_overridden_values_are_checked_too() -> None:
    assert "server.yaml:1" in refusal("port: x", {"DRAGOMAN_PORT": "1"}, {"port": "2"})
    assert "DRAGOMAN_PORT" in refusal("port: 1", {"DRAGOMAN_PORT": "x"}, {"port": "2"})


def test_options_that_need_each_other_may_come_from_different_sources() -> None:
    config = configure({}, {"DRAGOMAN_TLS_KEY": "key.pem"}, yaml_file("tls_cert: cert.pem")).config
    assert (config.tls_cert, config.tls_key) == (Path.cwd() / "cert.pem", Path("key.pem"))
    sentence = "--tls-cert and --tls-key must be set together"
    assert refusal(flags={"tls_cert": "cert.pem"}) == sentence
    assert refusal("tls_cert: cert.pem") == f"{sentence} (--tls-cert is from server.yaml:1)"
    said = refusal("\nbundle: one", {"DRAGOMAN_MODEL_REPOSITORY": "many"})
    assert said.endswith(" (--bundle is from server.yaml:2, --model-repository is from DRAGOMAN_MODEL_REPOSITORY)")


def test_ports_must_differ() -> None:
    sentence = "--port and --metrics-port can't both be 9090"
    assert refusal(flags={"port": "9090"}) == sentence
    assert refusal("port: 9090") == f"{sentence} (--port is from server.yaml:1)"
    assert configure({"metrics_port": "1"}, {}, yaml_file("port: 9090")).config.port == 9090
    assert configure({"port": "0", "metrics_port": "0"}, {}).config.metrics_port == 0


@pytest.mark.parametrize("name", ["max_batch_items", "max_stop_sequences", "max_answer_bytes"])
def test_clients_can_be_told_every_allowed_limit(name: str) -> None:
    _, manifest = load_manifest(SHIPPED_G2P)
    assert request_limits(configure({name: str(2**31 - 1)}, {}).config, 64, manifest.shape).ByteSize()
    assert f"to {2**31 - 1}" in refusal(flags={name: str(2**31)})


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("max_connections", 1_000_000),
        ("max_concurrent_streams", 1_000_000),
        ("max_connection_age_seconds", 1_728_000),
        ("connection_age_grace_seconds", 1_728_000),
    ],
)
def test_grpc_can_represent_every_allowed_number(name: str, most: int) -> None:
    config = configure({name: str(most), "max_connection_age_seconds": str(1_728_000)}, {}).config
    largest = 2**31 - 1
    assert all(value * 1.1 < largest for _, value in server_options(config, config.max_connections))
    for value in (most + 1, 2**31 - 1, 2**31, 10**30):
        assert f"to {most}" in refusal(flags={name: str(value)})


def test_variables_of_kubernetes_are_ignored() -> None:
    names = (
        "SERVICE_HOST SERVICE_PORT SERVICE_PORT_GRPC PORT_50051_TCP PORT_50051_TCP_PROTO PORT_50051_TCP_PORT "
        "PORT_50051_TCP_ADDR METRICS_SERVICE_HOST GRPC_V2_PORT_1_UDP_ADDR"
    )
    environment = {f"DRAGOMAN_{name}": "10.0.0.7" for name in names.split()}
    environment |= dict.fromkeys(("DRAGOMAN_PORT", "DRAGOMAN_METRICS_PORT"), "tcp://10.0.0.7:50051")
    configuration = configure({}, environment)
    assert configuration.config == DEFAULTS
    assert configuration.origins == {}
    assert configure({}, environment | {"DRAGOMAN_PORT": "1234"}).config.port == 1234


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port: 1\nhost: h\nport: 2", "server.yaml:3: port is set twice, first at server.yaml:1"),
        ("port: 1\n\thost: h", "server.yaml:2: this is not YAML: while scanning for the next token, found character"),
        ("port: [1", "server.yaml:1: this is not YAML: "),
        ("port: 1\n---\nport: 2", "server.yaml:2: this is not YAML: expected a single document in the stream"),
        ("port: !!python/object:os.system 1", "server.yaml:1: this is not YAML: could not determine a constructor"),
        ("port: *gone", "server.yaml:1: this is not YAML: found undefined alias"),
        ("port: 2026-99-99", "server.yaml is not YAML"),
        ("port: " + "[" * 1500, "server.yaml is not YAML"),
        ("port: \x00", "server.yaml is not YAML"),
        (b"host: \xff", "server.yaml is not text in UTF-8"),
        ("- port", "server.yaml is not a mapping of options to values, such as `port: 50051`"),
        ("port", "server.yaml is not a mapping of options to values, such as `port: 50051`"),
    ],
)
def test_an_invalid_file_is_refused(text: str | bytes, sentence: str) -> None:
    assert refusal(text).startswith(sentence)


def test_an_unreadable_file_is_refused_with_the_source_of_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config: gone\.yaml can't be read: No such file or directory$"):
        configure({}, {}, Path("gone.yaml"))
    with pytest.raises(ConfigError, match=r"^DRAGOMAN_CONFIG: .* can't be read: Is a directory$"):
        configure({}, {"DRAGOMAN_CONFIG": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"^DRAGOMAN_CONFIG is empty; expected the path of a YAML file$"):
        configure({}, {"DRAGOMAN_CONFIG": ""})


def test_secrets_are_never_shown() -> None:
    configuration = configure({"token": "hunter2"}, {"DRAGOMAN_PIN": "hunter2"}, None, Extended)
    assert "hunter2" not in "\n".join([str(configuration), *(line for line, _ in lines(configuration))])
    assert chosen(configuration) == {"token": "(secret) (--token)", "pin": "(secret) (DRAGOMAN_PIN)"}
    assert "123" not in (said := refusal(environment={"DRAGOMAN_PIN": "123"}, kind=Extended))
    assert said.startswith("DRAGOMAN_PIN has a wrong value: ")
    assert "hunter2" not in refusal("token: [hunter2]", kind=Extended)


def test_every_option_has_a_panel_a_line_of_help_and_an_expectation() -> None:
    names = [name for panel in PANELS for name in panel.model_fields]
    assert sorted(names) == sorted(ServerConfig.model_fields)
    assert len({panel.model_config["title"] for panel in PANELS}) == len(PANELS)
    for name, field in ServerConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert expectation(field), name
        assert placeholder(name, field), name


def test_the_manual_explains_every_option_and_has_its_default() -> None:
    text = MANUAL.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    missing = [name for name in ServerConfig.model_fields if name not in document]
    assert not missing, f"explain these in server/dragoman_server/server.yaml: {missing}"
    assert list(document) == [name for panel in PANELS for name in panel.model_fields], "in the order of --help"
    configuration = configure({}, {}, MANUAL)
    wrong = {name for name in document if getattr(configuration.config, name) != getattr(DEFAULTS, name)}
    assert not wrong, f"not the defaults: {wrong}"
    paragraphs = [paragraph.splitlines() for paragraph in text.split("\n\n")]
    options = [lines for lines in paragraphs if any(not line.startswith("#") for line in lines)]
    assert all(lines[0].startswith("# ") for lines in options)
    titles = [lines[0].split()[-1] for lines in paragraphs if lines[0].startswith("# ---")]
    assert titles == [str(panel.model_config["title"]) for panel in PANELS]
    assert max(map(len, text.splitlines())) <= 120
    done = CliRunner().invoke(app, ["--example-config"])
    assert (done.exit_code, done.output) == (0, text)


def test_a_printed_configuration_loads_to_the_same_values_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awkward: dict[str, str | bool] = {
        "memory_budget": "4 GiB",
        "host": "yes: # 'no'\n\u00e9",
        "bundle": "on",
        "drain_seconds": "1e-7",
        "log_level": "debug",
    }
    first = configure(awkward, {"DRAGOMAN_REFLECTION": "false"}, yaml_file("max_rows: 3"))
    assert first.config.memory_budget == 4 * 2**30
    printed = "\n".join(line for line, _ in lines(first))
    assert "max_rows: 3" in printed
    assert any(line.split()[-1] == "server.yaml:1" for line in printed.splitlines() if line.startswith("max_rows"))
    assert any(line.split()[-1] == "default" for line in printed.splitlines() if line.startswith("port:"))
    assert [line.split(":")[0] for line, is_set in lines(first) if is_set] == [
        name for panel in PANELS for name in panel.model_fields if name in first.origins
    ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = configure({}, {}, yaml_file(printed)).config
    assert again == first.config.model_copy(update={"bundle": tmp_path / "on"})


def test_the_command_prints_origins_and_refuses_wrong_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_QUEUE_SIZE", "7")
    file = yaml_file("max_rows: 3")
    done = CliRunner().invoke(app, ["--config", str(file), "--no-reflection", "--port", "0", "--print-config"])
    assert done.exit_code == 0
    origins = {line.split(":")[0]: line.split("  # ")[-1] for line in done.output.splitlines() if ": " in line}
    shown = [origins[name] for name in ("max_rows", "queue_size", "reflection", "port", "host")]
    assert shown == ["server.yaml:1", "DRAGOMAN_QUEUE_SIZE", "--no-reflection", "--port", "default"]
    done = CliRunner().invoke(app, ["--max-rows", "0", "--print-config"])
    assert done.exit_code == 2
    assert done.stderr == "dragoman-serve: --max-rows is '0'; expected a whole number of at least 1\n"
    assert done.stdout == ""


def test_set_values_are_bold_on_a_terminal() -> None:
    done = CliRunner().invoke(app, ["--max-rows", "3", "--print-config"], color=True)
    bold = [line for line in done.output.splitlines() if line.startswith("\x1b[1m")]
    assert [line.removeprefix("\x1b[1m").split(":")[0] for line in bold] == ["max_rows"]
    assert sum(line.startswith("\x1b[2m") for line in done.output.splitlines()) >= len(ServerConfig.model_fields) - 1


def test_help_shows_every_flag_in_its_panel() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    at = [text.index(f" {panel.model_config['title']} ") for panel in PANELS]
    assert at == sorted(at)
    for panel, begin, end in zip(PANELS, at, [*at[1:], len(text)], strict=True):
        for name in panel.model_fields:
            assert f"--{name.replace('_', '-')} " in text[begin:end]
    assert "[default: 50051]" in text
    assert "[default: true]" in text
    narrow = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    assert "\u2026" not in narrow, "a flag is truncated on a terminal of 80 columns"


@pytest.mark.parametrize(("device", "workers"), [("cuda:0,cuda:1", "3"), ("cuda:1", "2")])
def test_each_gpu_has_one_worker(device: str, workers: str) -> None:
    sentence = f"--device {device} needs one worker per GPU, which contradicts --workers {workers}"
    assert refusal(flags={"device": device, "workers": workers}) == sentence


@pytest.mark.parametrize(("device", "workers"), [("cpu", "8"), ("cuda:1,cuda:3", "2"), ("auto", "2"), ("cuda:7", "1")])
def test_devices_and_workers_that_agree_are_accepted(device: str, workers: str) -> None:
    config = configure({"device": device, "workers": workers}, {}).config
    assert (config.device, config.workers) == (device, int(workers))
