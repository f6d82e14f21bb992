"""The findings of each check of a host, computed mostly from recorded answers of hosts.

Also which differences between the build hosts of one host are refused, and which are only reported.
"""

import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.errors import UsageError
from perfbisect.host import facts, jobs
from perfbisect.host.facts import Fact, FactAnswers, free_bytes_fact
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import hold_lock
from perfbisect.host.protocol import Host
from perfbisect.hunt.session_hosts import have_common_build_hosts
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.building.toolchain import why_cache_unfit
from perfbisect.lab.checks import CheckRequest, Finding, Severity, machine, preflight
from perfbisect.lab.checks.all_hosts import DIFFERENCES, DISTRIBUTION, BuildHostProperties, build_host_differences
from perfbisect.lab.checks.preflight import compiler_cache_findings, shared_build_findings
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.wording.trials import paired_noise_sentences
from program import executable
from sharing import object_server

OUTPUTS = Path(__file__).parents[2] / "outputs" / "facts"
needs_ccache = pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache")


def inspection_of(
    host: LocalHost, *told: tuple[Fact[object] | str, str], builder: Builder | None = None, **entry: str
) -> CheckRequest:
    """A request with these answers of the host. A fact is given as a Fact or by its name in ``facts.SETTINGS``."""
    there = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    settings = preflight.facts.SETTINGS
    answers = FactAnswers({(settings[fact] if isinstance(fact, str) else fact).argv: said for fact, said in told})
    return CheckRequest(host, there, builder=builder, answers=answers, system="debian")


Check = Callable[[CheckRequest], Iterator[Finding]]


def levels(found: Iterator[Finding]) -> dict[str, Severity]:
    return {finding.topic: finding.level for finding in found}


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


NOTE, WARNING, OK = Severity.NOTE, Severity.WARNING, Severity.OK
UNPINNED = {"smt": NOTE, "numa": NOTE}
POOR = recorded("vm.sysbench-help").replace("  pgsql - PostgreSQL driver\n", "")


HUGE = "huge pages"
CORES, SWAPS = (facts.CORES, recorded("server.lscpu")), recorded("server.swaps")
MATTERS: list[tuple[Check, list[tuple[str | Fact[Any], str]], dict[str, Severity]]] = [
    (machine.clock_speed_findings, [("governor", "performance\n"), ("turbo", "boost 0")], {"governor": OK}),
    (machine.core_sharing_findings, [(facts.NODES, recorded("server.lscpu"))], UNPINNED),
    (
        machine.core_sharing_findings,
        [(facts.NODES, recorded("vm.lscpu")), (facts.STEAL_SHARE, recorded("server.stat"))],
        {"virtual": NOTE, "steal": WARNING},
    ),
    (machine.memory_layout_findings, [("aslr", "2\n"), (HUGE, "[always] madvise never\n")], {"aslr": NOTE, HUGE: NOTE}),
    (machine.memory_layout_findings, [("aslr", "0\n"), (HUGE, "always [madvise] never\n")], {}),
    (machine.swap_findings, [(facts.SWAP_TOTAL_AND_USED_MIB, SWAPS)], {"swap": WARNING}),
    (machine.swap_findings, [(facts.SWAP_TOTAL_AND_USED_MIB, SWAPS.replace("1310720", "0"))], {"swap": NOTE}),
    (machine.load_findings, [CORES, (facts.LOAD, "13.0 3.0 1.0 2/95 672\n")], {"load": WARNING}),
    (machine.load_findings, [CORES, (facts.LOAD, "11.0 3.0 1.0 2/95 672\n")], {"load": OK}),
    (preflight.driver_findings, [(facts.DRIVERS, recorded("vm.sysbench-help"))], {}),
    (preflight.driver_findings, [(facts.DRIVERS, POOR)], {"sysbench": Severity.REFUSED}),
]


def test_findings_have_the_expected_severity(host: LocalHost) -> None:
    """A host without answers has no findings."""
    recipe = Builder(summary="", driver="pgsql", build=Build(compile=[], install=[], artifacts=[]))
    for check, answers, expected in MATTERS:
        assert levels(check(inspection_of(host, *answers, builder=recipe))) == expected
        pinned = levels(check(inspection_of(host, *answers, builder=recipe, server_cpus="0-7")))
        assert pinned == ({"smt": NOTE} if expected == UNPINNED else expected)
    for check in {check for check, *_ in MATTERS} - {preflight.driver_findings} | {machine.space_findings}:
        assert levels(check(inspection_of(host, builder=recipe))) == {}


def test_warning_of_variable_clock_speed_has_the_command_to_fix_it(host: LocalHost) -> None:
    for name, state, command in (
        ("intel_pstate/no_turbo", "no_turbo 0", "echo 1"),
        ("cpufreq/boost", "boost 1", "echo 0"),
    ):
        switch = f"/sys/devices/system/cpu/{name}"
        told = (("governor", "powersave\n"), ("turbo", state), (facts.TURBO_SWITCH, switch))
        governor, turbo = machine.clock_speed_findings(inspection_of(host, *told))
        assert governor.level is turbo.level is WARNING
        assert "powersave" in governor.text and "scaling_governor" in governor.advice
        assert turbo.advice == f"{command} | sudo tee {switch}"


def test_severity_depends_on_the_free_disk_space(host: LocalHost) -> None:
    for gib, level in (0.125, Severity.REFUSED), (3, WARNING), (50, OK):
        [finding] = machine.space_findings(
            inspection_of(host, (free_bytes_fact(host.root), f"      Avail\n{int(gib * 2**30)}\n"))
        )
        assert finding.level is level
        assert f"{gib:.1f} GiB" in finding.text
        assert ("bisect gc here" in finding.advice) == (level is not OK)


def test_advice_has_the_install_command_of_the_distribution(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "missing_programs", lambda host, programs: ("g++",))
    for system, command in (("debian", "sudo apt-get install g++"), ("fedora", "sudo dnf install gcc-c++")):
        [absent, _] = preflight.tool_findings(replace(inspection_of(host), system=system))
        assert absent.level is Severity.REFUSED
        assert command in absent.advice


@pytest.mark.tools
def test_lock_jobs_and_ports_of_other_sessions_are_found(host: LocalHost) -> None:
    alone = inspection_of(host)
    assert levels(machine.lock_and_leftover_findings(alone)) == {"lock": OK}
    job = jobs.start(host, ["sleep", "100"], name="left", timeout=100)
    told = list(machine.lock_and_leftover_findings(alone))
    jobs.kill(host, job)
    assert [finding.topic for finding in told] == ["lock", "jobs"]
    assert job.id in told[1].text
    with hold_lock(host, "a hunt of somebody else"):
        [taken] = machine.lock_and_leftover_findings(alone)
        assert taken.level is WARNING
        assert "a hunt of somebody else" in taken.text
        assert not [*machine.pairing_noise_findings(alone)], "nothing is measured beside a hunt"
    listening = inspection_of(host, (facts.LISTENING_PORTS, "  0: 0100007F:5B0A 00000000:0000 0A\n"))
    assert "port 23306" in [finding.text for finding in machine.lock_and_leftover_findings(listening)][-1]


@pytest.mark.tools
def test_slow_or_wrong_clock_is_found(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*told: tuple[Fact[object], str], level: Severity = WARNING, text: str = "") -> None:
        found = list(machine.system_clock_findings(inspection_of(host, *told)))
        assert [(each.level, text in each.text) for each in found] == [(level, True)] * bool(text)

    check((facts.CLOCK_SOURCE, "tsc\n"))
    check((facts.CLOCK_SOURCE, "hpet\n"), text="hpet")
    check((facts.SYNCHRONISED, "NTPSynchronized=no\n"), level=NOTE, text="is not synchronised with a time server")
    monkeypatch.setattr(machine, "TIME", Fact(("date", "-d", "1 minute ago", "+%s.%N"), facts.TIME.read))
    check(text="60 s behind the clock of this machine")


def checked(folder: Path, level: Severity, text: str, **entry: object) -> None:
    """Check that the compiler cache of a host in ``folder`` has one finding, with this level and text and no secret."""
    host = LocalHost("here", PurePosixPath(folder))
    made = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    noted(compiler_cache_findings(CheckRequest(host, made)), level, text)


def noted(found: Iterable[Finding], level: Severity, text: str) -> None:
    assert [(each.level, text in each.text, "secret" in each.text) for each in found] == [(level, True, False)]


@pytest.mark.slow
@pytest.mark.tools
def test_gain_of_paired_runs_is_measured(far: Host) -> None:
    """The test loops run on another machine."""
    figures = r"has a standard deviation of [\d.]+ % \([\d.]+ % by CPU time\) if they run at the same time \(paired\), and of "
    [found] = machine.pairing_noise_findings(CheckRequest(far, HostEntry(name="far")))
    assert re.match(f"the ratio of two identical test loops {figures}", found.text)
    assert found.level is OK


def test_gain_of_paired_runs_is_computed_from_loop_times() -> None:
    gains, both = (
        r"Paired runs have less noise here",
        r"0\.\d+ % \(0\.\d+ % by CPU time\) if .* ",
    )
    for beside, cpu, alone, words in (
        (1.004, 1.001, 1.2, both + gains),
        (1.2, 1.002, 1.2, gains),
        (1.004, 1.003, 1.003, "do not have less noise"),
        (1.01, 0.0, 1.2, f"of [0-9.]+ % if .* {gains}"),  # CPU time is unknown
        (1.3, 0.0, 1.2, "do not have less noise"),
    ):
        lines = []
        for number in range(6):
            for name, ratio in (("alone", alone), ("beside", beside)):
                lines += [f"{name} 200000 {100000 * bool(cpu)}"]
                lines += [f"{name} {200000 * ratio ** (number % 2):.0f} {100000 * cpu ** (number % 2) * bool(cpu):.0f}"]
        found = machine.pairing_deviations("\n".join(lines))
        assert found
        assert re.search(words, paired_noise_sentences("loops", *found))
        assert machine.pairing_deviations("\n".join(lines[:6])) is None, "too few"


def test_remote_compiler_cache_is_tried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        unreachable = f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}"
    with object_server() as server:
        for address, fails, level, text in (
            (server.address, "", OK, ""),
            (server.address, "PUT", WARNING, "ccache"),
            (unreachable, "", WARNING, "cannot reach the store"),
        ):
            server.kept.clear()
            server.fails = lambda method, fails=fails: 403 if method == fails else 0
            checked(tmp_path, level, text, ccache_remote=address)
        assert {"PUT", "GET"} <= set(server.asked)
    assert not list(tmp_path.iterdir()), "no file of the test stays on the host"
    elsewhere = HostEntry(ccache_remote="http://127.0.0.1:1", build_hosts=["other"])
    for entry in (HostEntry(), HostEntry(ccache_remote="none"), elsewhere):
        assert not list(compiler_cache_findings(CheckRequest(LocalHost("here", PurePosixPath(tmp_path)), entry)))


def test_remote_compiler_cache_requires_a_version_of_ccache() -> None:
    assert "too old for a remote store: its version is 4.4" in why_cache_unfit((4, 4), "http://x")
    assert "has version 4.7, but https:// needs version 4.13 or newer" in why_cache_unfit((4, 7), "https://x")
    assert why_cache_unfit((4, 5), "redis://x") == why_cache_unfit((4, 13), "https://x") == ""


@needs_ccache
@pytest.mark.tools
def test_old_ccache_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script prints the first line of an old version, and fails otherwise."""
    old = "#!/bin/sh\n[ $1 != --version ] || { echo 'ccache version 4.4.1'; exit; }\nexit 1\n"
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "ccache", old).parent), prepend=":")
    checked(tmp_path, WARNING, "is too old for a remote store: its version is 4.4", ccache_remote="http://127.0.0.1:1")


def test_store_of_shared_builds_is_tried(tmp_path: Path) -> None:
    assert not list(shared_build_findings(None))
    for address, key, level, text in (
        (str(tmp_path), b"", OK, "who can write there can run code"),
        (str(tmp_path), b"k" * 16, OK, ", signed"),
        (str(tmp_path / "nowhere"), b"", WARNING, "does not exist"),
        ("nonsense://user:secret@x", b"", WARNING, "***@x"),
    ):
        noted(shared_build_findings(SharedBuilds(address, key)), level, text)
    assert not list(tmp_path.iterdir())


USUAL = {
    "architecture": "x86_64", "cc": "gcc 12.2.0", "cxx": "g++ 12.2.0", "linker": "GNU ld 2.40", "root": "/data",
    "cpu": "Xeon", "native": "Xeon (aaaa)", "release": "Debian 12", "ccache": "4.7.5", "cores": "32",
}  # fmt: skip
KEYS = dict(zip(USUAL, DIFFERENCES, strict=True))


def side(name: str, folder: str = "", **changes: str) -> BuildHostProperties:
    return BuildHostProperties(name, {KEYS[key]: value for key, value in (USUAL | changes).items()}, folder)


B1, B2 = side("b1"), side("b2")


def told(*sides: BuildHostProperties, native: bool = False) -> list[tuple[Severity, str]]:
    return [(finding.level, finding.text) for finding in build_host_differences("quiet", sides, native=native)]


def test_build_hosts_that_make_different_binaries_are_refused() -> None:
    other = {"cc": "gcc 13.1.0", "linker": "GNU ld 2.41", "architecture": "aarch64", "root": "/home/x"}
    for key, value in other.items():
        [(level, text)] = told(B1, side("b2", **{key: value}), side("b3"))
        assert level is Severity.REFUSED
        assert text.endswith(f"{USUAL[key]} on b1 and b3, {value} on b2")


def test_severity_of_a_difference_depends_on_its_effect_on_binaries() -> None:
    other = side("b2", cpu="EPYC", native="EPYC (bbbb)")
    assert [level for level, _ in told(B1, other)] == [NOTE]
    assert [level for level, _ in told(B1, other, native=True)] == [Severity.REFUSED], "the build is for its CPU"
    slower = side("b2", release="Ubuntu 22.04", ccache="4.11", cores="8")
    assert [level for level, _ in told(B1, slower)] == [WARNING, NOTE, NOTE]
    unknown = BuildHostProperties("b2", dict.fromkeys(DIFFERENCES, ""))
    assert told(B1, unknown, native=True) == told(B1, B2) == told(B1) == []


def test_two_build_hosts_with_the_same_root_folder_are_refused() -> None:
    here = side("b1", "boot1 8:1")
    [(level, text)] = told(here, side("b2", "boot1 8:1"))
    assert level is Severity.REFUSED
    assert text == "b1 and b2, which build for quiet, are the same machine with the same root folder"
    assert told(here, side("b2", "boot1 8:2")) == told(here, side("b2", "boot2 8:1")) == []


def test_release_of_a_distribution_is_read() -> None:
    name = "Debian GNU/Linux 12 (bookworm)"
    assert DISTRIBUTION.read(f'NAME="Debian"\nPRETTY_NAME="{name}"\n') == name
    assert DISTRIBUTION.read("NAME=x\n") is None


def entry(name: str, *builders: str) -> HostEntry:
    return HostEntry(name=name, build_hosts=[*builders])


def test_build_hosts_of_a_host_are_listed() -> None:
    alone, both, away = entry("a"), entry("a", "a", "b", "b"), entry("a", "b")
    assert (alone.all_build_hosts, alone.build_hosts_except_itself, alone.builds_itself) == (("a",), (), True)
    assert (both.all_build_hosts, both.build_hosts_except_itself, both.builds_itself) == (("a", "b"), ("b",), True)
    assert (away.all_build_hosts, away.build_hosts_except_itself, away.builds_itself) == (("b",), ("b",), False)


def test_several_build_hosts_must_be_the_same_for_all_hosts() -> None:
    several, one = entry("a", "x", "y"), entry("a", "x")
    for ahead in ([several], [one], [several, entry("b", "y", "x", "b")]):
        assert have_common_build_hosts(ahead)
    for alone in ([entry("a")], [entry("a"), entry("b", "a")], [one, entry("b")]):
        assert not have_common_build_hosts(alone)
    for other in (entry("b"), entry("b", "x"), entry("x", "y", "z")):
        with pytest.raises(UsageError, match="Several hosts build for a: x and y"):
            have_common_build_hosts([several, other])
