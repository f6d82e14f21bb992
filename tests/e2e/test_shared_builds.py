"""Hunts on hosts that have nothing, where others have built: nothing is built again, except for what cannot be trusted."""

import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from program import Process, bisect, bisect_watched
from sharing import object_server
from small_hunt import Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

BUILT = "select sum(reused = 0), sum(reused = 2), count(distinct commit_hash) from builds"


class Hunts(Hunt):
    """One hunt after the other, each on an empty host and in a history of its own."""

    def begin(self, name: str) -> list[str]:
        with (self.folder / "hosts.toml").open("a") as file:
            file.write(f'[hosts.{name}]\naddress = "local"\nroot = "{self.folder}/root-{name}"\n')
        return self.words("--host", name, "--plain", history=name)

    def hunt(self, name: str) -> tuple[int, int, int]:
        """Builds that were made, that were fetched, and commits with a build."""
        return self.result(name, bisect(*self.begin(name)))

    def result(self, name: str, ended: CompletedProcess[str]) -> tuple[int, int, int]:
        self.check(ended, name)
        ((made, fetched, commits),) = self.ask(BUILT, name)
        return made, fetched, commits

    def warnings(self, name: str) -> str:
        return "\n".join(text for (text,) in self.ask("select body from events where kind = 'Warned'", name))


@pytest.fixture
def hunts(tmp_path: Path) -> Hunts:
    return Hunts(tmp_path)


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
    shown = bisect("show", *hunts.kept("two"))
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

    made, fetched, commits = hunts.result("two", bisect_watched(hunts.begin("two"), see))
    assert fetched >= 1
    assert made >= 1
    assert made + fetched == commits
    assert hunts.warnings("two").count("cannot be read") == 1


def test_two_hosts_with_one_remote_store_compile_once(hunts: Hunts, seal: Path) -> None:
    with object_server() as server:
        share(seal, f'ccache = "{server.address}"')
        hunts.hunt("one")
        hunts.hunt("two")
    query = "select sum(cache_hits), sum(cache_misses) from builds"
    assert hunts.ask(query, "one")[0][1] > 0
    hits, misses = hunts.ask(query, "two")[0]
    assert (hits > 0, misses) == (True, 0)
    shown = bisect("show", *hunts.kept("two"))
    assert re.search(r"\(ccache 100 %, \d+ % of that remote\)", shown.stdout), shown.stdout
