"""The commands of a dry run. The names of these tests are short: sockets are in folders that are named after them."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfbisect.host.registry import MARKER
from program import SCRIPT, exits, printed, run

pytestmark = pytest.mark.tools

BUILDER = """
summary = "a server of the tests"
driver = "kv"
version = ["cat", "{source}/VERSION"]

[build]
configure = [["{source}/configure", "--prefix={prefix}", "CFLAGS={cflags}"]]
compile = [["make", "-j{jobs}"]]
install = [["make", "install"]]
artifacts = ["bin/kvd"]

[server]
config = "kv.conf"
initialise = [["{prefix}/bin/kvd", "--initialise", "{data}"]]
env = { KV_HOME = "{data}" }
start = ["{prefix}/bin/kvd", "--config={config}"]
ready = ["{prefix}/bin/kv", "ping"]
create = [["{prefix}/bin/kv", "create", "bench; rm -rf ~"]]
settle = [["{prefix}/bin/kv", "settle"]]

[dataset]
format_command = ["{prefix}/bin/kvd", "--format"]

[[when]]
version = ">=2"
change.server.start = ["{prefix}/bin/kvd", "--config={config}", "--quick"]
"""
SUITE = """
summary = "its benchmark"
driver = "kv"

[workloads.get]
summary = "one key after the other"
group = "point"
prepare_commands = [["{prefix}/bin/kvbench", "--fill"]]
command = ["{prefix}/bin/kvbench", "--seconds={time}"]
rate = "([0-9]+) keys"
"""


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def ours() -> Iterator[Path]:
    """The root of the host; a short path, because of the server's socket."""
    with tempfile.TemporaryDirectory(prefix="lab") as folder:
        yield Path(folder)


@pytest.fixture
def listing(tmp_path: Path, ours: Path, git: Callable[..., str]) -> Callable[..., str]:
    """``listing(good, bad)``: what a dry run from one to the other prints."""
    write(tmp_path / "repo" / "Makefile", "all:\n")
    for version in ("1.0", "2.0", "2.1"):
        write(tmp_path / "repo" / "VERSION", f"{version}\n")
        git("add", "-A")
        git("commit", "-qm", version)
        git("tag", version)
    write(tmp_path / "builders" / "kv" / "builder.toml", BUILDER)
    write(tmp_path / "builders" / "kv" / "kv.conf", "cache = {cache}M\n{settings}\n")
    write(tmp_path / "workloads" / "kv" / "suite.toml", SUITE)

    def ask(
        good: str, bad: str, host: str = "", more: str = "", root: str = "", variant: str = "o2nofp", status: int = 0
    ) -> str:
        write(tmp_path / "hosts.toml", f'[hosts.here]\nroot = "{ours / root}"\nmemory = 1024\n{host}\n{more}')
        places = {name: str(tmp_path / name) for name in ("builders", "workloads", "repo")}
        places |= {"hosts": str(tmp_path / "hosts.toml"), "builder": "kv", "workload": "get", "host": "here"}
        options = [word for name, value in places.items() for word in (f"--{name}", value)]
        words = ["run", good, bad, *options, "--time", "7", "--variant", variant, "--dry-run"]
        return exits(status, *words) if status else printed(*words)

    return ask


def test_commands_in_order(listing: Callable[..., str], ours: Path) -> None:
    said = listing("2.0", "2.1")
    work, visit = f"{ours}/work/kv", f"{ours}/visit"
    wanted = [
        f"# build, in {work}/build",
        f"{work}/source/configure --prefix={work}/prefix 'CFLAGS=-O2 -fno-omit-frame-pointer'",
        "make -j",
        "make install",
        "cache = 716M",
        f"KV_HOME={visit}/data {work}/prefix/bin/kvd --format",
        f"{work}/prefix/bin/kvd --initialise {visit}/data",
        f"KV_HOME={visit}/data {work}/prefix/bin/kvd --config={visit}/config --quick &",
        f"until TMPDIR={visit}/tmp KV_HOME={visit}/data {work}/prefix/bin/kv ping; do",
        f"{work}/prefix/bin/kv create 'bench; rm -rf ~'",
        f"{work}/prefix/bin/kvbench --fill",
        f"{work}/prefix/bin/kv settle",
        "kill -s TERM SERVER",
        f"# a visit, on a copy of that, in {work}/prefix\n",
        "perf stat",
        "-p SERVER",
        f"{work}/prefix/bin/kvbench --seconds=7",
    ]
    place = 0
    for part in wanted:
        assert part in said[place:], f"{part} is not listed after {said[:place][-80:]}"
        place = said.index(part, place) + len(part)
    assert [path.name for path in ours.iterdir()] == [MARKER]


def test_training_between_two_builds(listing: Callable[..., str], ours: Path) -> None:
    said = listing("2.0", "2.1", variant="pgo")
    _, counting, final = said.split("/source/configure")
    assert f"-fprofile-generate={ours}/work/kv/profile" in counting
    assert "# loading, and at most 30 s of kv/get, as below" in counting
    assert f"-fprofile-use={ours}/work/kv/profile" in final
    assert "CCACHE_DISABLE=1" in said


def test_the_other_end(listing: Callable[..., str]) -> None:
    assert listing("2.0", "2.1").endswith(": the same\n")
    _, other = listing("1.0", "2.1").split("the same except")
    assert "--quick" not in other
    assert "kvd --config=" in other
    assert "make install" not in other


def test_chosen_processors(listing: Callable[..., str]) -> None:
    loading, visit = listing("2.0", "2.1", 'server_cpus = "0-1"\nclient_cpus = "1"').split("# a visit")
    assert "taskset" not in loading, "nothing is measured yet"
    assert re.search(r"^TMPDIR=\S+ KV_HOME=\S+ taskset -c 0-1 \S+/kvd --config=", visit, re.MULTILINE)
    assert re.search(r"^taskset -c 1 perf stat ", visit, re.MULTILINE)


def test_without_perf(listing: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bin" / "perf", "#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    said = listing("2.0", "2.1")
    assert "perf" not in said.replace(str(tmp_path), "")
    assert "kvbench --seconds=7" in said


def test_a_build_host(listing: Callable[..., str], tmp_path: Path, ours: Path) -> None:
    maker = f'[hosts.maker]\nroot = "{tmp_path}/theirs"\njobs = 7\nccache_size = "3G"'
    said = listing("2.0", "2.1", 'build_hosts = ["maker"]\njobs = 3', maker)
    made, measured = said.split("# configuration of the server")
    assert f"# build, in {tmp_path}/theirs/work/kv/build on host maker, which sends the result to host here" in made
    assert "make -j7\n" in made
    assert "CCACHE_MAXSIZE=3G" in made
    assert f"{ours}" not in made
    assert f"{ours}/work/kv/prefix/bin/kvd" in measured
    assert f"{tmp_path}/theirs" not in measured


def test_length_of_the_root(listing: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert "kvbench" in listing("2.0", "2.1")
    assert not [*scratch.iterdir()]
    said = listing("2.0", "2.1", root="far" * 30, status=4)
    assert "the path of the server's socket is too long" in said


def test_without_a_build(listing: Callable[..., str], tmp_path: Path, ours: Path) -> None:
    """The tree has a Makefile."""
    head, tail = BUILDER.split("[build]")[0], BUILDER[BUILDER.index("[server]") :]
    write(tmp_path / "builders" / "kv" / "builder.toml", head + tail)
    said = listing("1.0", "2.1")
    build, visit = said.split("# configuration of the server")[:2]
    assert "make -j" in build
    assert f"PREFIX={ours}/work/kv/prefix" in build
    assert f"{ours}/work/kv/prefix/bin/kvd --config={ours}/visit/config --quick &" in visit


def test_format_without_server(listing: Callable[..., str], tmp_path: Path, ours: Path) -> None:
    head, tail = (
        BUILDER.split("[server]")[0],
        '[dataset]\nformat_command = ["{prefix}/bin/kvd", "--format", "{data}"]\n',
    )
    write(tmp_path / "builders" / "kv" / "builder.toml", head + tail)
    assert f"{ours}/work/kv/prefix/bin/kvd --format {ours}/visit/data\n" in listing("2.0", "2.1")


def test_what_a_hunt_takes_is_said_before_it_begins(ends: tuple[str, str]) -> None:
    """Without a history little is known; what is not committed is said, too."""
    asked = ["run", *ends, *SCRIPT, "--no-explain"]
    first = "1 commit, 1 candidate; about 2 builds and 8 to 14 runs"
    unknown = f"{first}; time and disk are known after the first ones"
    assert printed(*asked, "--dry-run").startswith(f"# {unknown}\n")
    Path("repo/run.sh").write_text("echo rate 5\n")
    ended = run(*asked, "--plain", "--name", "nightly 7")
    assert unknown in ended.err
    assert re.search(r"warning +\S+/repo has uncommitted changes, which are not measured", ended.out)
    assert re.match(rf"# {first}; about [\d s]+(to [\d s]+)?; [\d.]+ [kM]?B of disk\n", printed(*asked, "--dry-run"))
    assert printed("show", "nightly 7").startswith("Hunt 1, ")
    assert " nightly 7: " in printed("history")
    assert "is no name" in exits(3, *asked, "--name", "c3")
    assert "nor the name of a hunt" in exits(3, "show", "nightly")


def test_commits_that_change_nothing_are_counted_before_a_hunt(ends: tuple[str, str], git: Callable[..., str]) -> None:
    git("commit", "-q", "--allow-empty", "-m", "nothing")
    said = printed("run", ends[0], "HEAD", *SCRIPT, "--dry-run")
    assert said.startswith(
        "# 2 commits, 1 candidate, 1 commit not built: changes nothing that is built or read; about "
    )
