"""A download goes on where it was cut; nothing with another sum is kept; what cannot be had is a sentence with a command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository.downloads import downloaded
from shelf import Shelf, shelf, sum_of
from waiting import finish

CONTENT = bytes(range(256)) * 20_000  # 5 MB
SUM = sum_of(CONTENT)
PATH = "/1.2/lib_1_2.tar.gz"


@pytest.fixture
def server() -> Iterator[Shelf]:
    with shelf({PATH: CONTENT}) as state:
        yield state


@pytest.fixture
def cache(seal: Path) -> Path:
    return seal / ".cache/perfbisect/archives"


def fetch(server: Shelf, path: str = PATH, sha256: str = SUM) -> list[tuple[int, int]]:
    steps, file = finish(downloaded("lib 1.2", server.address + path, sha256))
    assert sum_of(file.read_bytes()) == sha256
    return steps


def test_it_is_fetched_once_with_progress(server: Shelf, cache: Path) -> None:
    steps = fetch(server)
    assert steps[0] == (0, 0)
    assert steps[-1] == (5, 5)
    assert steps == sorted(steps)
    assert fetch(server) == []
    assert server.asked == [(PATH, "")]
    assert {file.name for file in cache.iterdir()} == {"lib_1_2.tar.gz", "lock"}


def test_after_cuts_the_rest_is_asked_for(server: Shelf) -> None:
    server.cuts = [1_000_000, 2_000_000]
    fetch(server)
    assert server.asked == [(PATH, ""), (PATH, "bytes=1000000-"), (PATH, "bytes=3000000-")]


@pytest.mark.parametrize("left", [1_000_000, len(CONTENT)], ids=["a part", "all of it"])
def test_what_an_ended_process_has_left_is_used(server: Shelf, cache: Path, left: int) -> None:
    cache.mkdir(parents=True)
    (cache / f"lib_1_2.tar.gz.{SUM[:8]}.part").write_bytes(CONTENT[:left])
    fetch(server)
    assert server.asked == [(PATH, f"bytes={left}-")]


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("left", [b"?" * 1000, b"?" * 2 * len(CONTENT)], ids=["begins otherwise", "is longer"])
def test_what_is_of_another_file_is_fetched_anew(server: Shelf, cache: Path, left: bytes, parts: bool) -> None:
    server.parts = parts
    cache.mkdir(parents=True)
    (cache / f"lib_1_2.tar.gz.{SUM[:8]}.part").write_bytes(left)
    (cache / "lib_1_2.tar.gz").write_bytes(b"of another project")
    fetch(server)


def test_another_sum_is_an_error_and_nothing_is_kept(server: Shelf, cache: Path) -> None:
    with pytest.raises(EnvironmentFailure) as failed:
        fetch(server, sha256="0" * 64)
    assert str(failed.value) == (
        f"lib 1.2 is not used: {server.address}{PATH} has the sha256 {SUM}, and the recipe says {'0' * 64}"
    )
    assert [file.name for file in cache.iterdir()] == ["lock"]


def test_without_a_network_the_command_is_said_that_puts_it_there(server: Shelf, cache: Path, tmp_path: Path) -> None:
    gone = Shelf("http://127.0.0.1:9")
    with pytest.raises(EnvironmentFailure, match=r"^lib 1.2 cannot be fetched from .*: Connection refused$") as failed:
        fetch(gone)
    assert failed.value.advice == f"To put it there by hand: `cp lib_1_2.tar.gz {cache}/`."
    (cache / "lib_1_2.tar.gz").write_bytes(b"wrong")
    with pytest.raises(EnvironmentFailure, match="Not Found") as failed:
        fetch(server, "/elsewhere/lib_1_2.tar.gz")
    assert failed.value.advice.startswith(f"The one in {cache} has the sum {sum_of(b'wrong')}. To put it")
    (cache / "lib_1_2.tar.gz").write_bytes(CONTENT)
    assert fetch(gone) == []
