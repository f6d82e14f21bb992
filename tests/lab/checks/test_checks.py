"""What each check says of a host, given what the host told. Nothing is asked of this machine but where it says so.

And which differences between the build hosts of one host are refused, and which are told.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import UsageError
from perfbisect.host import facts, jobs
from perfbisect.host.facts import Answers, Fact, free
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import hold
from perfbisect.hunt.build_hosts import build_ahead
from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.lab.build.toolchain import unfit
from perfbisect.lab.checks import CheckRequest, Finding, Level, machine, preflight
from perfbisect.lab.checks.all_hosts import DIFFERENCES, BuildSide, differing, read_release
from perfbisect.lab.checks.preflight import compiler_cache, shared_findings
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.inventory import HostEntry
from sharing import object_server

OUTPUTS = Path(__file__).parents[2] / "outputs" / "facts"
needs_ccache = pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache")
CPUS = "/sys/devices/system/cpu"


def inspection_of(
    host: LocalHost, *told: tuple[Fact[object], str], builder: Builder | None = None, **entry: str
) -> CheckRequest:
    there = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    answers = Answers({fact.argv: said for fact, said in told})
    return CheckRequest(host, there, builder=builder, answers=answers, system="debian")


def levels(found: Iterator[Finding]) -> dict[str, Level]:
    return {finding.topic: finding.level for finding in found}


def setting(name: str) -> Fact[object]:
    return preflight.facts.SETTINGS[name]


def test_a_host_that_tells_nothing_is_not_accused(host: LocalHost) -> None:
    silent = inspection_of(host)
    pure = (machine.clock_speed, machine.sharing, machine.layout, machine.space, machine.swap, machine.load)
    assert [finding for check in pure for finding in check(silent) if finding.level is not Level.OK] == []


def test_an_unsteady_clock_is_warned_of_with_the_command_that_mends_it(host: LocalHost) -> None:
    for switch, state, command in (
        (f"{CPUS}/intel_pstate/no_turbo", "no_turbo 0", f"echo 1 | sudo tee {CPUS}/intel_pstate/no_turbo"),
        (f"{CPUS}/cpufreq/boost", "boost 1", f"echo 0 | sudo tee {CPUS}/cpufreq/boost"),
    ):
        told = ((setting("governor"), "powersave\n"), (setting("turbo"), state), (facts.TURBO_SWITCH, switch))
        governor, turbo = machine.clock_speed(inspection_of(host, *told))
        assert governor.level is turbo.level is Level.WARNING
        assert "powersave" in governor.text
        assert "scaling_governor" in governor.advice
        assert turbo.advice == command
    steady = inspection_of(host, (setting("governor"), "performance\n"), (setting("turbo"), "boost 0"))
    assert levels(machine.clock_speed(steady)) == {"governor": Level.OK}


def test_what_cores_share(host: LocalHost) -> None:
    server, vm = ((OUTPUTS / f"{name}.lscpu").read_text() for name in ("server", "vm"))
    assert levels(machine.sharing(inspection_of(host, (facts.NODES, server)))) == {
        "smt": Level.NOTE,
        "numa": Level.NOTE,
    }
    pinned = inspection_of(host, (facts.NODES, server), server_cpus="0-7")
    assert levels(machine.sharing(pinned)) == {"smt": Level.NOTE}
    stolen = (OUTPUTS / "server.stat").read_text()
    told = machine.sharing(inspection_of(host, (facts.NODES, vm), (facts.STEAL, stolen)))
    assert levels(told) == {"virtual": Level.NOTE, "steal": Level.WARNING}


def test_what_moves_memory_about(host: LocalHost) -> None:
    told = (setting("aslr"), "2\n"), (setting("huge pages"), "[always] madvise never\n")
    assert levels(machine.layout(inspection_of(host, *told))) == {"aslr": Level.NOTE, "huge pages": Level.NOTE}
    calm = (setting("aslr"), "0\n"), (setting("huge pages"), "always [madvise] never\n")
    assert levels(machine.layout(inspection_of(host, *calm))) == {}


@pytest.mark.parametrize(
    ("gib", "level"), [(0.125, Level.REFUSED), (3, Level.WARNING), (50, Level.OK)], ids=["full", "short", "ample"]
)
def test_room_on_the_disk(host: LocalHost, gib: float, level: Level) -> None:
    df = f"      Avail\n{int(gib * 2**30)}\n"
    [finding] = machine.space(inspection_of(host, (free(host.root), df)))
    assert finding.level is level
    assert f"{gib:.1f} GiB" in finding.text
    assert ("bisect gc here" in finding.advice) == (level is not Level.OK)


def test_swap_in_use_is_worse_than_swap(host: LocalHost) -> None:
    used = (OUTPUTS / "server.swaps").read_text()
    assert levels(machine.swap(inspection_of(host, (facts.SWAP, used)))) == {"swap": Level.WARNING}
    unused = used.replace("1310720", "0")
    assert levels(machine.swap(inspection_of(host, (facts.SWAP, unused)))) == {"swap": Level.NOTE}


def test_a_busy_machine_is_warned_of(host: LocalHost) -> None:
    cores = (preflight.facts.CORES, (OUTPUTS / "server.lscpu").read_text())
    [busy] = machine.load(inspection_of(host, cores, (preflight.facts.LOAD, "13.0 3.0 1.0 2/95 672\n")))
    assert busy.level is Level.WARNING
    assert "load average is 13.0 on 24 cores" in busy.text
    [calm] = machine.load(inspection_of(host, cores, (preflight.facts.LOAD, "11.0 3.0 1.0 2/95 672\n")))
    assert calm.level is Level.OK


def test_sysbench_without_the_driver_is_refused(host: LocalHost) -> None:
    recipe = Builder(summary="", driver="pgsql", build=Build(compile=[], install=[], artifacts=[]))
    full = (OUTPUTS / "vm.sysbench-help").read_text()
    assert not list(preflight.drivers(inspection_of(host, (facts.DRIVERS, full), builder=recipe)))
    poor = full.replace("  pgsql - PostgreSQL driver\n", "")
    assert levels(preflight.drivers(inspection_of(host, (facts.DRIVERS, poor), builder=recipe))) == {
        "sysbench": Level.REFUSED
    }


@pytest.mark.parametrize(
    ("system", "command"), [("debian", "sudo apt-get install g++"), ("fedora", "sudo dnf install gcc-c++")]
)
def test_the_command_that_installs_is_that_of_the_system(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, system: str, command: str
) -> None:
    monkeypatch.setattr(preflight, "missing", lambda host, programs: ("g++",))
    [absent, _] = preflight.tools(replace(inspection_of(host), system=system))
    assert absent.level is Level.REFUSED
    assert command in absent.advice


@pytest.mark.tools
def test_who_is_there(host: LocalHost) -> None:
    alone = inspection_of(host)
    assert levels(machine.others(alone)) == {"lock": Level.OK}
    job = jobs.start(host, ["sleep", "100"], name="left", timeout=100)
    try:
        told = list(machine.others(alone))
        assert [finding.topic for finding in told] == ["lock", "jobs"]
        assert job.id in told[1].text
    finally:
        jobs.kill(host, job)
    with hold(host, "a hunt of somebody else"):
        [taken] = machine.others(alone)
        assert taken.level is Level.WARNING
        assert "a hunt of somebody else" in taken.text
    listening = inspection_of(host, (facts.PORTS, "  0: 0100007F:5B0A 00000000:0000 0A\n"))
    assert "port 23306" in [finding.text for finding in machine.others(listening)][-1]


@pytest.mark.tools
def test_a_slow_or_wrong_clock(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(machine.clock(inspection_of(host, (facts.CLOCK_SOURCE, "tsc\n")))) == {}
    [slow] = machine.clock(inspection_of(host, (facts.CLOCK_SOURCE, "hpet\n")))
    assert slow.level is Level.WARNING
    assert "hpet" in slow.text
    loose = inspection_of(host, (facts.SYNCHRONISED, "NTPSynchronized=no\n"))
    assert levels(machine.clock(loose)) == {"clock": Level.NOTE}
    behind = Fact(("date", "-d", "1 minute ago", "+%s.%N"), facts.TIME.read)
    monkeypatch.setattr(machine, "TIME", behind)
    [wrong] = machine.clock(inspection_of(host))
    assert "60 s behind that of this machine" in wrong.text


def checked(folder: Path, **entry: object) -> list[Finding]:
    host = LocalHost("here", PurePosixPath(folder))
    made = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    return list(compiler_cache(CheckRequest(host, made)))


@needs_ccache
@pytest.mark.tools
def test_a_store_that_works(tmp_path: Path) -> None:
    with object_server() as server:
        (found,) = checked(tmp_path, ccache_remote=server.address)
        assert found.level is Level.OK
        assert "secret" not in found.text
        assert {"PUT", "GET"} <= set(server.asked)
        (again,) = checked(tmp_path, ccache_remote=server.address)
        assert again.level is Level.OK
    assert not list(tmp_path.iterdir()), "nothing of it stays on the host"


@needs_ccache
@pytest.mark.tools
def test_a_store_that_takes_nothing(tmp_path: Path) -> None:
    with object_server() as server:
        server.fails = lambda method: 403 if method == "PUT" else 0
        (found,) = checked(tmp_path, ccache_remote=server.address)
    assert found.level is Level.WARNING
    assert "ccache" in found.text


@needs_ccache
@pytest.mark.tools
def test_a_store_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    (found,) = checked(tmp_path, ccache_remote=f"http://user:secret@127.0.0.1:{port}")
    assert found.level is Level.WARNING
    assert "cannot reach it" in found.text
    assert "secret" not in found.text


@needs_ccache
@pytest.mark.tools
def test_where_nothing_is_shared_or_built_nothing_is_tried(tmp_path: Path) -> None:
    assert not checked(tmp_path)
    assert not checked(tmp_path, ccache_remote="none")
    assert not checked(tmp_path, ccache_remote="http://127.0.0.1:1", build_hosts=["other"])


@pytest.mark.parametrize(
    ("version", "remote", "reason"),
    [
        ((4, 4), "http://x", "too old for a remote store: 4.4"),
        ((4, 5), "redis://x", ""),
        ((4, 7), "https://x", "no https://, before 4.13: 4.7"),
        ((4, 13), "https://x", ""),
    ],
)
def test_which_versions_can_use_which_store(version: tuple[int, int], remote: str, reason: str) -> None:
    found = unfit(version, remote)
    assert reason in found
    assert bool(found) is bool(reason)


@needs_ccache
@pytest.mark.tools
def test_a_ccache_that_is_too_old_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version, as far as its first line goes."""
    program = tmp_path / "bin" / "ccache"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n[ $1 != --version ] || { echo 'ccache version 4.4.1'; exit; }\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (found,) = checked(tmp_path, ccache_remote="http://127.0.0.1:1")
    assert found.level is Level.WARNING
    assert "is too old for a remote store: 4.4" in found.text


def test_a_store_that_can_be_used(tmp_path: Path) -> None:
    assert not list(shared_findings(None))
    (found,) = shared_findings(SharedBuilds(str(tmp_path)))
    assert found.level is Level.OK
    assert "who can write there can run code on your hosts" in found.text
    (found,) = shared_findings(SharedBuilds(str(tmp_path), b"0123456789abcdef"))
    assert found.text.endswith(", signed")
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot(tmp_path: Path) -> None:
    (found,) = shared_findings(SharedBuilds(str(tmp_path / "nowhere")))
    assert found.level is Level.WARNING
    assert "there is no folder" in found.text
    (found,) = shared_findings(SharedBuilds("nonsense://user:secret@x"))
    assert found.level is Level.WARNING
    assert "secret" not in found.text


NAMES = ("architecture", "cc", "cxx", "linker", "root", "cpu", "native", "release", "ccache", "cores")
KEYS = dict(zip(NAMES, DIFFERENCES, strict=True))


def side(name: str, folder: str = "", **changes: str) -> BuildSide:
    known = (
        "x86_64",
        "gcc 12.2.0",
        "g++ 12.2.0",
        "GNU ld 2.40",
        "/data",
        "Xeon",
        "Xeon (aaaa)",
        "Debian 12",
        "4.7.5",
        "32",
    )
    return BuildSide(
        name, {KEYS[key]: value for key, value in (dict(zip(NAMES, known, strict=True)) | changes).items()}, folder
    )


B1, B2 = side("b1"), side("b2")


def told(*sides: BuildSide, native: bool = False) -> list[tuple[Level, str]]:
    return [(finding.level, finding.text) for finding in differing("quiet", sides, native=native)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cc": "gcc 13.1.0"}, "gcc 12.2.0 on b1 and b3, gcc 13.1.0 on b2"),
        ({"linker": "GNU ld 2.41"}, "GNU ld 2.40 on b1 and b3, GNU ld 2.41 on b2"),
        ({"architecture": "aarch64"}, "x86_64 on b1 and b3, aarch64 on b2"),
        ({"root": "/home/x"}, "/data on b1 and b3, /home/x on b2"),
    ],
)
def test_what_makes_other_binaries_is_refused(change: dict[str, str], words: str) -> None:
    [(level, text)] = told(B1, side("b2", **change), side("b3"))
    assert level is Level.REFUSED
    assert text.endswith(words)


def test_what_differs_matters_as_it_reaches_the_binaries() -> None:
    other = side("b2", cpu="EPYC", native="EPYC (bbbb)")
    assert [level for level, _ in told(B1, other)] == [Level.NOTE]
    assert [level for level, _ in told(B1, other, native=True)] == [Level.REFUSED], "it is compiled for"
    slower = side("b2", release="Ubuntu 22.04", ccache="4.11", cores="8")
    assert [level for level, _ in told(B1, slower)] == [Level.WARNING, Level.NOTE, Level.NOTE]
    unknown = BuildSide("b2", dict.fromkeys(DIFFERENCES, ""))
    assert told(B1, unknown, native=True) == told(B1, B2) == told(B1) == []


def test_two_names_of_one_folder_are_refused() -> None:
    here = side("b1", "boot1 8:1")
    [(level, text)] = told(here, side("b2", "boot1 8:1"))
    assert level is Level.REFUSED
    assert text == "b1 and b2, which build for quiet, are the same machine with the same root folder"
    assert told(here, side("b2", "boot1 8:2")) == told(here, side("b2", "boot2 8:1")) == []


def test_the_release_of_a_distribution() -> None:
    assert (
        read_release('NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
        == "Debian GNU/Linux 12 (bookworm)"
    )
    assert read_release("NAME=x\n") is None


def entry(name: str, *builders: str) -> HostEntry:
    return HostEntry(name=name, build_hosts=[*builders])


def test_who_builds() -> None:
    alone, both, away = entry("a"), entry("a", "a", "b", "b"), entry("a", "b")
    assert (alone.built_on, alone.built_elsewhere, alone.builds) == (("a",), (), True)
    assert (both.built_on, both.built_elsewhere, both.builds) == (("a", "b"), ("b",), True)
    assert (away.built_on, away.built_elsewhere, away.builds) == (("b",), ("b",), False)


def test_build_hosts_are_shared_by_all_hosts_of_a_hunt_or_are_single() -> None:
    assert build_ahead([entry("a", "x", "y")])
    assert build_ahead([entry("a", "x")])
    assert build_ahead([entry("a", "x", "y"), entry("b", "y", "x", "b")])
    assert not build_ahead([entry("a")])
    assert not build_ahead([entry("a"), entry("b", "a")])
    assert not build_ahead([entry("a", "x"), entry("b")])
    for other in (entry("b"), entry("b", "x"), entry("x", "y", "z")):
        with pytest.raises(UsageError, match="Several hosts build for a: x and y"):
            build_ahead([entry("a", "x", "y"), other])
