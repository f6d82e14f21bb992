"""Hunts on hosts that have nothing, where others have built: nothing is built again, except for what cannot be trusted."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from program import Process, bisect, bisect_watched, rows
from sharing import object_server

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

COMMITS, CULPRIT = 8, 5
BENCH = r"""
#include <stdio.h>
#include <unistd.h>
#include "work.h"

int main(void) {
    usleep(WORK); /* where speed is not the question: no other process changes it */
    printf("ops/s: %d\n", 100000000 / WORK);
    return 0;
}
"""
BUILT = "select sum(reused = 0), sum(reused = 2), count(distinct commit_hash) from builds"


class Hunts:
    """One hunt after the other, each on an empty host and in a history of its own."""

    def __init__(self, folder: Path, culprit: str) -> None:
        self.folder, self.culprit, self.hosts = folder, culprit, folder / "hosts.toml"

    def words(self, name: str, *more: str) -> list[str]:
        with self.hosts.open("a") as file:
            file.write(f'[hosts.{name}]\naddress = "local"\nroot = "{self.folder}/root-{name}"\n')
        asked = ["run", "v0", f"v{COMMITS - 1}", "--build", "make", "--run", "./bench", "--rate", r"ops/s: (\d+)"]
        asked += ["--repo", str(self.folder / "repo"), "--host", name, "--hosts", str(self.hosts), "--no-explain"]
        return [*asked, *more, "--plain", "--history", str(self.history(name))]

    def history(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def hunt(self, name: str, *more: str) -> tuple[int, int, int]:
        """Builds that were made, that were fetched, and commits with a build."""
        ended = bisect(*self.words(name, *more))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return self.result(name)

    def result(self, name: str) -> tuple[int, int, int]:
        history = self.history(name)
        assert rows(history, "select culprit from culprits") == [(self.culprit,)]
        ((made, fetched, commits),) = rows(history, BUILT)
        return made, fetched, commits

    def warnings(self, name: str) -> str:
        return "\n".join(text for (text,) in rows(self.history(name), "select body from events where kind = 'Warned'"))


@pytest.fixture
def hunts(git: Callable[..., str], tmp_path: Path) -> Hunts:
    repo = tmp_path / "repo"
    (repo / "bench.c").write_text(BENCH)
    (repo / "Makefile").write_text(
        "bench: bench.o\n\t$(CC) -o $@ $<\nbench.o: bench.c work.h\n\t$(CC) -O1 -c bench.c\n"
    )
    for number in range(COMMITS):
        (repo / "work.h").write_text(f"/* {number} */\n#define WORK {40000 if number >= CULPRIT else 20000 + number}\n")
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")
    return Hunts(tmp_path, git("rev-parse", f"v{CULPRIT}"))


def share(seal: Path, what: str) -> None:
    config = seal / ".config" / "perfbisect" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"[shared]\n{what}\n")


def test_a_second_hunt_builds_nothing_and_a_third_what_was_damaged(hunts: Hunts, seal: Path, tmp_path: Path) -> None:
    store, key = tmp_path / "store", tmp_path / "key"
    store.mkdir()
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o600)
    share(seal, f'builds = "{store}"\nkey_file = "{key}"')
    made, fetched, commits = hunts.hunt("one")
    assert made == commits > 2
    assert not fetched
    assert len(list(store.iterdir())) == commits
    made, fetched, again = hunts.hunt("two")
    assert (made, fetched) == (0, again)
    assert again > 2
    shown = bisect("show", "--history", str(hunts.history("two")))
    assert f"0 builds and {fetched} from the shared builds in " in shown.stdout
    for file in store.iterdir():
        data = bytearray(file.read_bytes())
        data[-50] ^= 1
        file.write_bytes(data)
    made, fetched, commits = hunts.hunt("three")
    assert (made, fetched) == (commits, 0)
    assert hunts.warnings("three").count("is refused") == commits
    assert hunts.hunt("four")[0] == 0, "what was refused has been replaced"


def test_the_store_goes_away_during_a_hunt(hunts: Hunts, seal: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    share(seal, f'builds = "{store}"')
    hunts.hunt("one")

    def see(line: str, _: Process) -> None:
        if "from the shared builds" in line and store.exists():
            store.rename(tmp_path / "away")

    ended = bisect_watched(hunts.words("two"), see)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made, fetched, commits = hunts.result("two")
    assert fetched >= 1
    assert made >= 1
    assert made + fetched == commits
    assert hunts.warnings("two").count("cannot be read") == 1


def test_two_hosts_with_one_remote_store_compile_once(hunts: Hunts, seal: Path) -> None:
    with object_server() as server:
        share(seal, f'ccache = "{server.address}"')
        hunts.hunt("one", "--no-layouts")  # with them, ccache hashes a path below the root folder
        hunts.hunt("two", "--no-layouts")
    query = "select sum(cache_hits), sum(cache_misses) from builds"
    assert rows(hunts.history("one"), query)[0][1] > 0
    hits, misses = rows(hunts.history("two"), query)[0]
    assert (hits > 0, misses) == (True, 0)
    shown = bisect("show", "--history", str(hunts.history("two")))
    assert re.search(r"\(ccache 100 %, \d+ % of that remote\)", shown.stdout), shown.stdout
