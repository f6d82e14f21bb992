from pathlib import Path, PurePosixPath

import pytest

from fake_host import FakeHost
from perfbisect.host import facts
from perfbisect.host.facts import Fact, ask, ask_all
from perfbisect.host.local import LocalHost

OUTPUTS = Path(__file__).parents[1] / "outputs" / "facts"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


READ = {
    facts.CPU: {"vm.lscpu": "AMD EPYC", "server.lscpu": "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz"},
    facts.PROCESSOR: {"vm.lscpu": "AMD EPYC (cpu family 25, model 1)"},
    facts.CORES: {"vm.lscpu": 2, "server.lscpu": 24},
    facts.NODES: {"vm.lscpu": 1, "server.lscpu": 2},
    facts.THREADS: {"vm.lscpu": 1, "server.lscpu": 2},
    facts.HYPERVISOR: {"vm.lscpu": "KVM", "server.lscpu": None},
    facts.MEMORY_MIB: {"vm.meminfo": 24105},
    facts.SWAP: {"vm.swaps": (0, 0), "server.swaps": (12287, 1280)},
    facts.COMPILER: {"vm.gcc": "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"},
    facts.STEAL: {
        "server.stat": pytest.approx(250 / 9251, rel=1e-4),
        "vm.stat": pytest.approx(0.00394, rel=0.01),
    },
    facts.PORTS: {"vm.tcp": {2024}},
    facts.DRIVERS: {"vm.sysbench-help": {"mysql", "pgsql"}},
    facts.SETTINGS["mitigations"]: {
        "server.vulnerabilities": "l1tf Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable;"
        " meltdown Mitigation: PTI",
    },
    facts.disk(FakeHost("x", {})): {"vm.df-types": "ext4, 251 GiB"},
    facts.free(PurePosixPath("/")): {"vm.df": int(recorded("vm.df").splitlines()[1])},
}


@pytest.mark.parametrize("fact", READ, ids=lambda fact: " ".join(fact.argv[:3]))
def test_what_machines_have_printed(fact: Fact[object]) -> None:
    assert {name: fact.read(recorded(name)) for name in READ[fact]} == READ[fact]


def test_parts_of_what_is_printed() -> None:
    assert facts.LOAD.read("12.50 3.05 1.07 2/95 6722\n") == 12.5
    versions = [facts.TOOLS["git"].read(line) for line in recorded("vm.tools").splitlines()]
    assert versions == ["2.39.5", "4.7.5", "1.0.20", "6.1.187", "2.38.1"]
    assert facts.TOOLS["perf"].read("perf version 6.8.0-51-generic") == "6.8.0-51-generic"
    assert facts.THROTTLED.read("12\n0\n30\n") == 42
    assert facts.SYNCHRONISED.read("NTPSynchronized=no\n") is False
    systems = [facts.SYSTEM.read(recorded(f"{name}.os-release")) for name in ("vm", "ubuntu", "server")]
    assert systems == ["debian", "ubuntu", "fedora"]


def test_what_a_machine_does_not_tell_is_none() -> None:
    named = [fact for fact in vars(facts).values() if isinstance(fact, Fact)]
    every = {fact for fact in (*named, *READ, *facts.TOOLS.values(), *facts.SETTINGS.values()) if fact != facts.PORTS}
    assert len(every) > 30
    assert [fact for fact in every if fact.read("") is not None] == []


def test_settings() -> None:
    read = {name: fact.read for name, fact in facts.SETTINGS.items()}
    assert read["governor"]("performance\nperformance\n") == "performance"
    assert read["governor"]("powersave\nperformance\npowersave\n") == "powersave/performance"
    assert [read["turbo"](text) for text in ("no_turbo 0\n", "no_turbo 1\n", "boost 1\n", "boost 0\n", "boost \n")] == [
        "on", "off", "on", "off", None,
    ]  # fmt: skip
    assert [read["smt"](text) for text in ("on\n", "forceoff\n", "notsupported\n")] == ["on", "forceoff", None]
    assert [read["aslr"](text) for text in ("0\n", "1\n", "2\n")] == ["off", "on", "on"]
    assert read["huge pages"]("always [madvise] never\n") == "madvise"
    assert (read["mitigations"](recorded("vm.vulnerabilities")) or "").startswith("spec_rstack_overflow Vulnerable")
    assert read["mitigations"]("/sys/x/meltdown:Not affected\n") == "none needed"
    assert read["microcode"]("microcode\t: 0xd0003e7\n") == "0xd0003e7"


def test_this_machine(tmp_path: Path) -> None:
    host = LocalHost("here", PurePosixPath(tmp_path))
    found = facts.fingerprint(host)
    assert found.name == "here"
    assert found.cores >= 1
    assert found.memory_mib > 100
    assert found.tools["git"][0].isdigit()
    assert found == facts.fingerprint(host)
    assert facts.ask(host, facts.Fact(("no-such-program",), facts.read_line)) is None
    free = facts.free_bytes(host)
    assert free is not None
    assert free > 0
    assert facts.ask(host, facts.LOAD) is not None


def test_a_list_of_cpus_is_read_as_taskset_reads_it() -> None:
    assert facts.cpu_numbers("0-2,8") == {0, 1, 2, 8}
    assert facts.cpu_numbers("0-6:3,1") == {0, 1, 3, 6}


def test_many_facts_are_asked_in_one_command(tmp_path: Path) -> None:
    """As if one by one: odd words are not executed, what fails is not there, and output may be empty."""
    odd = Fact(("printf", "%s", "$(touch x) 'a' \"b\"\nlast"), str)
    empty = Fact(("true",), str)
    failing = Fact(("false",), str)
    absent = Fact(("no-such-program-here",), str)
    host = LocalHost("here", PurePosixPath(tmp_path))
    told = ask_all(host, (odd, empty, failing, absent, odd))
    assert [told.get(fact) for fact in (odd, empty, failing, absent)] == ["$(touch x) 'a' \"b\"\nlast", "", None, None]
    assert told.get(Fact(("never", "asked"), str)) is None
    assert not list(tmp_path.iterdir())


def test_conditions_of_this_machine(tmp_path: Path) -> None:
    host = LocalHost("here", PurePosixPath(tmp_path))
    assert ask(host, facts.reflinks(host)) in ("yes", "no")
    assert not list(tmp_path.iterdir())
    assert ask(host, facts.TIME) is not None
    assert ask(host, facts.SWAP) is not None
    assert ask(host, facts.PORTS) is not None
