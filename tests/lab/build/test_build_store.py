"""A build and a dataset appear in one step, also when the step is taken twice, or after it was cut short."""

from pathlib import Path, PurePosixPath

import pytest

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import build_store

pytestmark = pytest.mark.tools

FACTS = BuildFacts("c" * 40, "key", "binary", 1.0, 0, 0, reused=False, log="")


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "log").write_text("log")
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "file").write_text("installed")
    return LocalHost("here", PurePosixPath(tmp_path))


def keep(host: LocalHost) -> None:
    build_store.keep(host, FACTS, "1.0", host.root / "prefix", host.root / "log")
    kept = Path(build_store.prefix(host, "key"))
    assert (kept / "file").read_text() == "installed"
    assert build_store.find(host, "key", "c" * 40) is not None


def test_once_is_as_good_as_twice(host: LocalHost) -> None:
    keep(host)
    keep(host)


def test_what_was_cut_short_is_finished(host: LocalHost) -> None:
    keep(host)
    place = Path(build_store.folder(host, "key"))
    place.rename(place.with_name("key.part"))
    keep(host)
    assert not place.with_name("key.part").exists()


@pytest.mark.parametrize("text", ["", '{"facts": {"commit": "c', "{}"])
def test_a_build_that_cannot_be_read_is_made_anew(host: LocalHost, text: str) -> None:
    keep(host)
    Path(build_store.folder(host, "key"), "build.json").write_text(text)
    assert build_store.find(host, "key", "c" * 40) is None
    Path(host.root, "prefix").mkdir()
    Path(host.root, "prefix", "file").write_text("installed")
    keep(host)
