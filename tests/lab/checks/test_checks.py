"""What each check says of a host, given what the host told. Nothing is asked of this machine but where it says so."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.host import conditions, jobs
from perfbisect.host.facts import Answers, Fact, free
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import hold
from perfbisect.lab.checks import contention, preflight, processor, space, tools
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.inventory import HostEntry

OUTPUTS = Path(__file__).parents[2] / "outputs" / "facts"
CPUS = "/sys/devices/system/cpu"


def inspection_of(
    host: LocalHost, *told: tuple[Fact[object], str], builder: Builder | None = None, **entry: str
) -> Inspection:
    there = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    return Inspection(
        CheckRequest(host, there, builder=builder), Answers({fact.argv: said for fact, said in told}), "debian"
    )


def levels(found: Iterator[Finding]) -> dict[str, Level]:
    return {finding.topic: finding.level for finding in found}


def setting(name: str) -> Fact[object]:
    return preflight.facts.SETTINGS[name]


def test_a_host_that_tells_nothing_is_not_accused(host: LocalHost) -> None:
    silent = inspection_of(host)
    pure = (processor.clock_speed, processor.sharing, processor.layout, space.space, space.swap, contention.load)
    assert [finding for check in pure for finding in check(silent) if finding.level is not Level.OK] == []


def test_an_unsteady_clock_is_warned_of_with_the_command_that_mends_it(host: LocalHost) -> None:
    for switch, state, command in (
        (f"{CPUS}/intel_pstate/no_turbo", "no_turbo 0", f"echo 1 | sudo tee {CPUS}/intel_pstate/no_turbo"),
        (f"{CPUS}/cpufreq/boost", "boost 1", f"echo 0 | sudo tee {CPUS}/cpufreq/boost"),
    ):
        told = ((setting("governor"), "powersave\n"), (setting("turbo"), state), (conditions.TURBO_SWITCH, switch))
        governor, turbo = processor.clock_speed(inspection_of(host, *told))
        assert governor.level is turbo.level is Level.WARNING
        assert "powersave" in governor.text
        assert "scaling_governor" in governor.advice
        assert turbo.advice == command
    steady = inspection_of(host, (setting("governor"), "performance\n"), (setting("turbo"), "boost 0"))
    assert levels(processor.clock_speed(steady)) == {"governor": Level.OK}


def test_what_cores_share(host: LocalHost) -> None:
    server, vm = ((OUTPUTS / f"{name}.lscpu").read_text() for name in ("server", "vm"))
    assert levels(processor.sharing(inspection_of(host, (conditions.NODES, server)))) == {
        "smt": Level.NOTE,
        "numa": Level.NOTE,
    }
    pinned = inspection_of(host, (conditions.NODES, server), server_cpus="0-7")
    assert levels(processor.sharing(pinned)) == {"smt": Level.NOTE}
    stolen = (OUTPUTS / "server.stat").read_text()
    told = processor.sharing(inspection_of(host, (conditions.NODES, vm), (conditions.STEAL, stolen)))
    assert levels(told) == {"virtual": Level.NOTE, "steal": Level.WARNING}


def test_what_moves_memory_about(host: LocalHost) -> None:
    told = (setting("aslr"), "2\n"), (setting("huge pages"), "[always] madvise never\n")
    assert levels(processor.layout(inspection_of(host, *told))) == {"aslr": Level.NOTE, "huge pages": Level.NOTE}
    calm = (setting("aslr"), "0\n"), (setting("huge pages"), "always [madvise] never\n")
    assert levels(processor.layout(inspection_of(host, *calm))) == {}


@pytest.mark.parametrize(
    ("gib", "level"), [(0.125, Level.REFUSED), (3, Level.WARNING), (50, Level.OK)], ids=["full", "short", "ample"]
)
def test_room_on_the_disk(host: LocalHost, gib: float, level: Level) -> None:
    df = f"      Avail\n{int(gib * 2**30)}\n"
    [finding] = space.space(inspection_of(host, (free(host.root), df)))
    assert finding.level is level
    assert f"{gib:.1f} GiB" in finding.text
    assert ("bisect gc here" in finding.advice) == (level is not Level.OK)


def test_swap_in_use_is_worse_than_swap(host: LocalHost) -> None:
    used = (OUTPUTS / "server.swaps").read_text()
    assert levels(space.swap(inspection_of(host, (conditions.SWAP, used)))) == {"swap": Level.WARNING}
    unused = used.replace("1310720", "0")
    assert levels(space.swap(inspection_of(host, (conditions.SWAP, unused)))) == {"swap": Level.NOTE}


def test_a_busy_machine_is_warned_of(host: LocalHost) -> None:
    cores = (preflight.facts.CORES, (OUTPUTS / "server.lscpu").read_text())
    [busy] = contention.load(inspection_of(host, cores, (preflight.facts.LOAD, "13.0 3.0 1.0 2/95 672\n")))
    assert busy.level is Level.WARNING
    assert "load average is 13.0 on 24 cores" in busy.text
    [calm] = contention.load(inspection_of(host, cores, (preflight.facts.LOAD, "11.0 3.0 1.0 2/95 672\n")))
    assert calm.level is Level.OK


def test_sysbench_without_the_driver_is_refused(host: LocalHost) -> None:
    recipe = Builder(summary="", driver="pgsql", build=Build(compile=[], install=[], artifacts=[]))
    full = (OUTPUTS / "vm.sysbench-help").read_text()
    assert not list(tools.drivers(inspection_of(host, (conditions.DRIVERS, full), builder=recipe)))
    poor = full.replace("  pgsql - PostgreSQL driver\n", "")
    assert levels(tools.drivers(inspection_of(host, (conditions.DRIVERS, poor), builder=recipe))) == {
        "sysbench": Level.REFUSED
    }


@pytest.mark.parametrize(
    ("system", "command"), [("debian", "sudo apt-get install g++"), ("fedora", "sudo dnf install gcc-c++")]
)
def test_the_command_that_installs_is_that_of_the_system(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, system: str, command: str
) -> None:
    monkeypatch.setattr(tools, "missing", lambda host, programs: ("g++",))
    [absent, _] = tools.tools(replace(inspection_of(host), system=system))
    assert absent.level is Level.REFUSED
    assert command in absent.advice


@pytest.mark.tools
def test_who_is_there(host: LocalHost) -> None:
    alone = inspection_of(host)
    assert levels(contention.others(alone)) == {"lock": Level.OK}
    job = jobs.start(host, ["sleep", "100"], name="left", timeout=100)
    try:
        told = list(contention.others(alone))
        assert [finding.topic for finding in told] == ["lock", "jobs"]
        assert job.id in told[1].text
    finally:
        jobs.kill(host, job)
    with hold(host, "a hunt of somebody else"):
        [taken] = contention.others(alone)
        assert taken.level is Level.WARNING
        assert "a hunt of somebody else" in taken.text
    listening = inspection_of(host, (conditions.PORTS, "  0: 0100007F:5B0A 00000000:0000 0A\n"))
    assert "port 23306" in [finding.text for finding in contention.others(listening)][-1]


@pytest.mark.tools
def test_a_slow_or_wrong_clock(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(contention.clock(inspection_of(host, (conditions.CLOCK_SOURCE, "tsc\n")))) == {}
    [slow] = contention.clock(inspection_of(host, (conditions.CLOCK_SOURCE, "hpet\n")))
    assert slow.level is Level.WARNING
    assert "hpet" in slow.text
    loose = inspection_of(host, (conditions.SYNCHRONISED, "NTPSynchronized=no\n"))
    assert levels(contention.clock(loose)) == {"clock": Level.NOTE}
    behind = Fact(("date", "-d", "1 minute ago", "+%s.%N"), conditions.read_seconds)
    monkeypatch.setattr(contention, "TIME", behind)
    [wrong] = contention.clock(inspection_of(host))
    assert "60 s behind that of this machine" in wrong.text
