"""The commands of a dry run. The names of these tests are short: sockets are in folders that are named after them."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfbisect.host.registry import MARKER
from program import SCRIPT, executable, exits, printed, run
from repos import Repo

pytestmark = pytest.mark.tools

Listing = Callable[..., str]
BUILDER = Path("builders/kv/builder.toml")


@pytest.fixture
def ours() -> Iterator[Path]:
    """The root of the host; a short path, because of the server's socket."""
    with tempfile.TemporaryDirectory(prefix="lab") as folder:
        yield Path(folder)


@pytest.fixture
def listing(recipes: None, ours: Path, git: Repo) -> Listing:
    """``listing(good, …)``: what a dry run from there to 2.1 prints."""
    for version in ("1.0", "2.0", "2.1"):
        git.commit({"Makefile": "all:\n", "VERSION": f"{version}\n"}, tag=version)

    def ask(good: str, host: str = "", root: str = "", variant: str = "o2nofp", status: int = 0) -> str:
        Path("hosts.toml").write_text(f'[hosts.here]\nroot = "{ours / root}"\nmemory = 1024\n{host}')
        asked = f"{good} 2.1 --builder kv --workload get --repo repo --host here --hosts hosts.toml --time 7 --dry-run"
        words = ["run", *asked.split(), "--variant", variant]
        return exits(status, *words) if status else printed(*words)

    return ask


def test_commands_in_order(listing: Listing, ours: Path) -> None:
    said = listing("2.0")
    wanted = Path(__file__).with_name("dry_run.txt").read_text().replace("OURS", str(ours)).splitlines()
    place = 0
    for part in wanted:
        assert part in said[place:], f"{part} is not listed after {said[:place][-80:]}"
        place = said.index(part, place) + len(part)
    assert said.endswith(": the same\n"), "the other end"
    assert [path.name for path in ours.iterdir()] == [MARKER]
    _, other = listing("1.0").split("the same except")
    assert "kvd --config=" in other and "--quick" not in other and "make install" not in other


def test_training_between_two_builds(listing: Listing, ours: Path) -> None:
    said = listing("2.0", variant="pgo")
    _, counting, final = said.split("/source/configure")
    assert f"-fprofile-generate={ours}/work/kv/profile" in counting
    assert "# loading, and at most 30 s of kv/get, as below" in counting
    assert f"-fprofile-use={ours}/work/kv/profile" in final and "CCACHE_DISABLE=1" in said


def test_chosen_processors(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a host without perf."""
    loading, visit = listing("2.0", 'server_cpus = "0-1"\nclient_cpus = "1"').split("# a visit")
    assert "taskset" not in loading, "nothing is measured yet"
    assert re.search(r"^TMPDIR=\S+ KV_HOME=\S+ taskset -c 0-1 \S+/kvd --config=", visit, re.MULTILINE)
    assert re.search(r"^taskset -c 1 perf stat ", visit, re.MULTILINE)
    executable(tmp_path / "bin" / "perf", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    said = listing("2.0").replace(str(tmp_path), "")
    assert "perf" not in said and "kvbench --seconds=7" in said


def test_a_build_host(listing: Listing, tmp_path: Path, ours: Path) -> None:
    theirs = f"{tmp_path}/theirs"
    maker = f'build_hosts = ["maker"]\njobs = 3\n[hosts.maker]\nroot = "{theirs}"\njobs = 7\nccache_size = "3G"'
    made, measured = listing("2.0", maker).split("# configuration of the server")
    assert f"# build, in {theirs}/work/kv/build on host maker, which sends the result to host here" in made
    assert "make -j7\n" in made and "CCACHE_MAXSIZE=3G" in made and f"{ours}" not in made
    assert f"{ours}/work/kv/prefix/bin/kvd" in measured and theirs not in measured


def test_length_of_the_root(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert "kvbench" in listing("2.0")
    assert not [*scratch.iterdir()]
    assert "the path of the server's socket is too long" in listing("2.0", root="far" * 30, status=4)


def test_other_recipes(listing: Listing, ours: Path) -> None:
    """Without a build, where the tree has a Makefile; and with a command for the format, but without a server."""
    whole, work, visit = BUILDER.read_text(), f"{ours}/work/kv", f"{ours}/visit"
    BUILDER.write_text(whole.split("[build]")[0] + whole[whole.index("[server]") :])
    build, served = listing("1.0").split("# configuration of the server")[:2]
    assert "make -j" in build and f"PREFIX={work}/prefix" in build
    assert f"{work}/prefix/bin/kvd --config={visit}/config --quick &" in served
    of_data = '[dataset]\nformat_command = ["{prefix}/bin/kvd", "--format", "{data}"]\n'
    BUILDER.write_text(whole.split("[server]")[0] + of_data)
    assert f"{work}/prefix/bin/kvd --format {visit}/data\n" in listing("2.0")


def test_what_a_hunt_takes_is_said_before_it_begins(ends: tuple[str, str], git: Repo) -> None:
    """Without a history little is known; what is not committed is said, too, and so are commits that change nothing."""
    asked = ["run", *ends, *SCRIPT, "--no-explain"]
    first = "1 commit, 1 candidate; about 2 builds"
    unknown = f"{first}; runs: not known before the ends are measured; time and disk are known after the first builds and runs"
    assert printed(*asked, "--dry-run").startswith(f"# {unknown}\n")
    Path("repo/run.sh").write_text("echo rate 5\n")
    ended = run(*asked, "--plain", "--name", "nightly 7")
    assert unknown in ended.err
    assert re.search(r"warning +\S+/repo has uncommitted changes, which are not measured", ended.out)
    assert re.match(rf"# {unknown.rpartition(';')[0]}; [\d.]+ [kM]?B of disk\n", printed(*asked, "--dry-run"))
    assert "of one run" in printed("noise", "local", "--rev", ends[0], *SCRIPT, "--visits", "6", "--runs", "1")
    known = rf"# {first} and \d+ to \d+ runs; about [\d s]+(to [\d smin]+)?; [\d.]+ [kM]?B of disk\n"
    assert re.match(known, printed(*asked, "--dry-run"))
    assert printed("show", "nightly 7").startswith("Hunt 1, ")
    assert " nightly 7: " in printed("history")
    assert "nor the name of a hunt" in exits(3, "show", "nightly")
    git("commit", "-q", "--allow-empty", "-m", "nothing")
    said = printed("run", ends[0], "HEAD", *SCRIPT, "--dry-run")
    assert said.startswith(
        "# 2 commits, 1 candidate, 1 commit not built, because it changes no file that is built or read; about "
    )
