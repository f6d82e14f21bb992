"""Commands that a dry run lists. Test names are short, because the paths of sockets contain them and are limited."""

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
    """The root folder of the host. Its path is short, because the path of the server's socket is limited."""
    with tempfile.TemporaryDirectory(prefix="lab") as folder:
        yield Path(folder)


@pytest.fixture
def listing(recipes: None, ours: Path, git: Repo) -> Listing:
    """``listing(good, …)``: the output of a dry run of a hunt from ``good`` to 2.1."""
    for version in ("1.0", "2.0", "2.1"):
        git.commit({"Makefile": "all:\n", "VERSION": f"{version}\n"}, tag=version)

    def ask(good: str, host: str = "", root: str = "", variant: str = "o2nofp", status: int = 0) -> str:
        Path("hosts.toml").write_text(f'[hosts.here]\nroot = "{ours / root}"\nmemory = 1024\n{host}')
        asked = f"{good} 2.1 --builder kv --workload get --repo repo --host here --hosts hosts.toml --time 7 --dry-run"
        words = ["run", *asked.split(), "--variant", variant]
        return exits(status, *words) if status else printed(*words)

    return ask


def test_commands_listed_in_order(listing: Listing, ours: Path) -> None:
    said = listing("2.0")
    wanted = Path(__file__).with_name("dry_run.txt").read_text().replace("OURS", str(ours)).splitlines()
    place = 0
    for part in wanted:
        assert part in said[place:], f"{part} is not listed after {said[:place][-80:]}"
        place = said.index(part, place) + len(part)
    assert said.endswith(": the same commands\n"), "the commands of the other end"
    assert [path.name for path in ours.iterdir()] == [MARKER]
    _, other = listing("1.0").split("the same commands, except:")
    assert "kvd --config=" in other and "--quick" not in other and "make install" not in other


def test_pgo_trains_between_builds(listing: Listing, ours: Path) -> None:
    said = listing("2.0", variant="pgo")
    _, counting, final = said.split("/source/configure")
    assert f"-fprofile-generate={ours}/work/kv/profile" in counting
    assert "# loading, and at most 30 s of kv/get, as below" in counting
    assert f"-fprofile-use={ours}/work/kv/profile" in final and "CCACHE_DISABLE=1" in said


def test_taskset_pins_processors(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last listing is of a host without perf."""
    loading, visit = listing("2.0", 'server_cpus = "0-1"\nclient_cpus = "1"').split("# a visit")
    assert "taskset" not in loading, "loading is not measured"
    assert re.search(r"^TMPDIR=\S+ KV_HOME=\S+ taskset -c 0-1 \S+/kvd --config=", visit, re.MULTILINE)
    assert re.search(r"^taskset -c 1 perf stat ", visit, re.MULTILINE)
    executable(tmp_path / "bin" / "perf", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    said = listing("2.0").replace(str(tmp_path), "")
    assert "perf" not in said and "kvbench --seconds=7" in said


def test_build_host_builds(listing: Listing, tmp_path: Path, ours: Path) -> None:
    theirs = f"{tmp_path}/theirs"
    maker = f'build_hosts = ["maker"]\njobs = 3\n[hosts.maker]\nroot = "{theirs}"\njobs = 7\nccache_size = "3G"'
    made, measured = listing("2.0", maker).split("# configuration of the server")
    assert f"# build, in {theirs}/work/kv/build on host maker, which sends the result to host here" in made
    assert "make -j7\n" in made and "CCACHE_MAXSIZE=3G" in made and f"{ours}" not in made
    assert f"{ours}/work/kv/prefix/bin/kvd" in measured and theirs not in measured


def test_long_root_is_refused(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert "kvbench" in listing("2.0")
    assert not [*scratch.iterdir()]
    assert "the path of the server's socket is too long" in listing("2.0", root="far" * 30, status=4)


def test_partial_recipes(listing: Listing, ours: Path) -> None:
    """A recipe without ``[build]``, for a tree with a Makefile; a recipe without ``[server]``, but a format command."""
    whole, work, visit = BUILDER.read_text(), f"{ours}/work/kv", f"{ours}/visit"
    BUILDER.write_text(whole.split("[build]")[0] + whole[whole.index("[server]") :])
    build, served = listing("1.0").split("# configuration of the server")[:2]
    assert "make -j" in build and f"PREFIX={work}/prefix" in build
    assert f"{work}/prefix/bin/kvd --config={visit}/config --quick &" in served
    of_data = '[dataset]\nformat_command = ["{prefix}/bin/kvd", "--format", "{data}"]\n'
    BUILDER.write_text(whole.split("[server]")[0] + of_data)
    assert f"{work}/prefix/bin/kvd --format {visit}/data\n" in listing("2.0")


def test_dry_run_and_hunt_print_expected_costs(ends: tuple[str, str], git: Repo) -> None:
    """Without a history, the number of runs is unknown. A hunt also warns of uncommitted changes."""
    asked = ["run", *ends, *SCRIPT, "--no-explain"]
    first = "1 commit, 1 candidate; about 2 builds"
    unknown = f"{first}; number of runs: unknown until good and bad are measured; time and disk space: unknown until the first builds and runs"
    assert printed(*asked, "--dry-run").startswith(f"# {unknown}\n")
    Path("repo/run.sh").write_text("echo rate 5\n")
    ended = run(*asked, "--plain", "--name", "nightly 7")
    assert unknown in ended.err
    assert re.search(r"warning +\S+/repo has uncommitted changes, which are not measured", ended.out)
    assert re.match(rf"# {unknown.rpartition(';')[0]}; [\d.]+ [kM]?B of disk space\n", printed(*asked, "--dry-run"))
    assert "of one run" in printed("noise", "local", "--rev", ends[0], *SCRIPT, "--visits", "6", "--runs", "1")
    known = rf"# {first} and \d+ to \d+ runs; about [\d s]+(to [\d smin]+)?; [\d.]+ [kM]?B of disk space\n"
    assert re.match(known, printed(*asked, "--dry-run"))
    assert printed("show", "nightly 7").startswith("Hunt 1, ")
    assert " nightly 7: " in printed("history")
    assert "nor the name of a hunt" in exits(3, "show", "nightly")
    git("commit", "-q", "--allow-empty", "-m", "nothing")
    said = printed("run", ends[0], "HEAD", *SCRIPT, "--dry-run")
    assert said.startswith(
        "# 2 commits, 1 candidate, 1 commit not built, because it changes no file that is built or read; about "
    )
