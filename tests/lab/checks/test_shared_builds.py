"""`bisect doctor` tries the shared builds."""

from pathlib import Path

from object_server import object_server
from perfbisect.lab.build.shared.builds import SharedBuilds
from perfbisect.lab.checks.finding import Level
from perfbisect.lab.checks.shared_builds import shared_findings


def test_a_store_that_can_be_used(tmp_path: Path) -> None:
    assert not list(shared_findings(None))
    (found,) = shared_findings(SharedBuilds(str(tmp_path)))
    assert found.level is Level.OK
    assert "who can write there can run code on your hosts" in found.text
    (found,) = shared_findings(SharedBuilds(str(tmp_path), b"0123456789abcdef"))
    assert found.text.endswith(", signed")
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot() -> None:
    with object_server() as server:
        server.fails = lambda method: 403 if method == "PUT" else 0
        (found,) = shared_findings(SharedBuilds(server.address))
    assert found.level is Level.WARNING
    assert "403" in found.text
    assert "secret" not in found.text
    (found,) = shared_findings(SharedBuilds("nonsense://x"))
    assert found.level is Level.WARNING
