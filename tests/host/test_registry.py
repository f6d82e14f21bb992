"""From an address in hosts.toml to a kind of connection."""

from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import UsageError
from perfbisect.host import registry
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import CONNECTIONS, Connect, connect
from perfbisect.recipes.inventory import HostEntry


@pytest.mark.parametrize(
    ("address", "scheme", "destination"),
    [
        ("local", "local", ""),
        ("me@far", "ssh", "me@far"),
        ("ssh://me@far", "ssh", "me@far"),
        ("batch://queue/fast", "batch", "queue/fast"),
    ],
)
def test_the_scheme_of_an_address_chooses_the_module(
    address: str, scheme: str, destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = []

    def stub(name: str) -> Connect:
        def made(entry: HostEntry, rest: str) -> LocalHost:
            connected.append((name, entry.name, rest))
            return LocalHost(entry.name, PurePosixPath(tmp_path))

        return made

    monkeypatch.setattr(registry, "CONNECTIONS", {name: stub(name) for name in (*CONNECTIONS, "batch")})
    assert connect(HostEntry(name="one", address=address)).name == "one"
    assert connected == [(scheme, "one", destination)]


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no kind of connection is named 'batch'") as caught:
        connect(HostEntry(name="one", address="batch://queue"))
    known = ", ".join(CONNECTIONS)
    assert caught.value.advice == f"Known are {known}: correct `hosts.one.address` in hosts.toml."
