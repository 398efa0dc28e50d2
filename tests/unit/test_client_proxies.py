"""Which targets a proxy of the environment stands before."""

import pytest

from dragoman.channel import channel_options as options
from dragoman.channel import grpc_target as target
from dragoman.channel import has_several_servers as balances
from dragoman.proxies import is_loopback, proxy_variable, proxy_variable_for_url

LOCAL = ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "LOCALHOST:1", "[::ffff:127.0.0.1]:1", "0.0.0.0:1"]
DIRECT = ["unix:/run/dragoman", "unix-abstract:dragoman", "ipv4:127.0.0.1:1", "dns://1.1.1.1/localhost:1"]
OF_ELSEWHERE = ["10.0.0.1:1", "[2001:db8::1]:1", "dragoman.example:1", "localhost.example:1", "128.0.0.1:1"]


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("address", [*LOCAL, *DIRECT, "10.0.0.1:1,10.0.0.2:1"])
def test_none_stands_before_this_machine_nor_before_several_addresses(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert ("grpc.enable_http_proxy", 0) in options(target(address))
    assert proxy_variable(target(address)) is None


@pytest.mark.parametrize("address", OF_ELSEWHERE)
def test_the_first_variable_that_is_set_counts_for_what_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    assert ("grpc.enable_http_proxy", 0) not in options(target(address))
    assert proxy_variable(target(address)) is None
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
        assert proxy_variable(target(address)) == name
    for ignored in ("", "proxy.example:3128", "socks5://proxy.example:1080"):
        monkeypatch.setenv("grpc_proxy", ignored)
        assert proxy_variable(target(address)) is None


@pytest.mark.parametrize(
    ("entries", "host", "excepted"),
    [
        ("example", "a.example:1", True),
        (" .example , x", "a.EXAMPLE:1", True),
        ("a.example", "b.example:1", False),
        ("10.0.0.0/8", "10.2.3.4:1", True),
        ("10.0.0.0/8", "11.2.3.4:1", False),
        ("10.0.0.0/8,,2001:db8::/32", "[2001:db8::5]:1", True),
        ("10.2.3.4", "10.2.3.4:1", True),
    ],
)
def test_no_proxy_lists_ends_of_names_and_networks(
    monkeypatch: pytest.MonkeyPatch, entries: str, host: str, excepted: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", entries)
    assert (proxy_variable(target(host)) is None) == excepted
    monkeypatch.setenv("no_grpc_proxy", "another.host")
    assert proxy_variable(target(host)) == "http_proxy"


def test_for_pages_the_variables_are_those_of_urllib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("grpc_proxy", "http://proxy.example:3128")
    assert proxy_variable_for_url("http://a.example:9090/") is None
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    assert proxy_variable_for_url("http://a.example:9090/live.json") == "HTTP_PROXY"
    assert proxy_variable_for_url("https://a.example/") is None
    for local in ("http://127.0.0.1:9090/", "http://localhost/", "http://[::1]:9090/x"):
        assert proxy_variable_for_url(local) is None
    monkeypatch.setenv("no_proxy", "a.example")
    assert proxy_variable_for_url("http://a.example:9090/live.json") is None


def test_what_is_no_address_is_not_of_this_machine() -> None:
    assert not any(map(is_loopback, ["", "127.0.0.1.example", "loop", "::2"]))


@pytest.mark.parametrize(
    ("address", "several"),
    [
        ("dragoman.speech.svc:50051", True),
        ("10.0.0.1:1,10.0.0.2:1", True),
        ("dns://10.0.0.9/dragoman:1", True),
        ("10.0.0.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost:1", False),
        ("unix:/run/dragoman", False),
    ],
)
def test_health_is_followed_where_there_may_be_several_servers(address: str, several: bool) -> None:
    assert balances(target(address)) == several
