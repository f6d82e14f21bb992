from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host import facts
from perfbisect.host.facts import Fact, ask, ask_all
from perfbisect.host.local import LocalHost
from perfbisect.host.packages import read_system

OUTPUTS = Path(__file__).parents[1] / "outputs" / "facts"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


def test_processor() -> None:
    assert facts.read_cpu(recorded("vm.lscpu")) == "AMD EPYC"
    assert facts.read_cores(recorded("vm.lscpu")) == 2
    assert facts.read_processor(recorded("vm.lscpu")) == "AMD EPYC (cpu family 25, model 1)"
    assert facts.read_cpu(recorded("server.lscpu")) == "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz"
    assert facts.read_cores(recorded("server.lscpu")) == 24


def test_memory_load_and_disk() -> None:
    assert facts.read_memory(recorded("vm.meminfo")) == 24105
    assert facts.read_load("12.50 3.05 1.07 2/95 6722\n") == 12.5
    assert facts.read_free(recorded("vm.df")) == int(recorded("vm.df").splitlines()[1])


def test_versions() -> None:
    versions = [facts.read_version(line) for line in recorded("vm.tools").splitlines()]
    assert versions == ["2.39.5", "4.7.5", "1.0.20", "6.1.187", "2.38.1"]
    assert facts.read_version("perf version 6.8.0-51-generic") == "6.8.0-51-generic"
    assert facts.read_line(recorded("vm.gcc")) == "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"


def test_what_a_machine_does_not_tell_is_none() -> None:
    readings = (
        facts.read_cpu, facts.read_processor, facts.read_cores, facts.read_memory, facts.read_version, facts.read_line, facts.read_words,
        facts.read_chosen, facts.read_load, facts.read_free, *(fact.read for fact in facts.SETTINGS.values()),
    )  # fmt: skip
    assert {reading.__name__: reading("") for reading in readings} == dict.fromkeys(r.__name__ for r in readings)


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


def test_processors() -> None:
    vm, server = recorded("vm.lscpu"), recorded("server.lscpu")
    assert [facts.read_nodes(vm), facts.read_nodes(server)] == [1, 2]
    assert [facts.read_threads(vm), facts.read_threads(server)] == [1, 2]
    assert [facts.read_hypervisor(vm), facts.read_hypervisor(server)] == ["KVM", None]
    assert facts.read_steal(recorded("server.stat")) == pytest.approx(250 / 9251, rel=1e-4)
    assert facts.read_steal(recorded("vm.stat")) == pytest.approx(0.00394, rel=0.01)
    assert facts.read_sum("12\n0\n30\n") == 42


def test_memory_and_disk() -> None:
    assert facts.read_swap(recorded("vm.swaps")) == (0, 0)
    assert facts.read_swap(recorded("server.swaps")) == (12287, 1280)
    assert facts.read_disk(recorded("vm.df-types")) == "ext4, 251 GiB"


def test_the_kernel_and_the_system() -> None:
    assert facts.read_mitigations(recorded("server.vulnerabilities")) == (
        "l1tf Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable; meltdown Mitigation: PTI"
    )
    assert (facts.read_mitigations(recorded("vm.vulnerabilities")) or "").startswith("spec_rstack_overflow Vulnerable")
    assert facts.read_mitigations("/sys/x/meltdown:Not affected\n") == "none needed"
    assert facts.read_microcode("microcode\t: 0xd0003e7\n") == "0xd0003e7"
    systems = [read_system(recorded(f"{name}.os-release")) for name in ("vm", "ubuntu", "server")]
    assert systems == ["debian", "ubuntu", "fedora"]
    assert read_system("ID=arch\n") is None
    assert facts.read_synchronised("NTPSynchronized=no\n") is False
    assert facts.read_ports(recorded("vm.tcp")) == {2024}
    assert facts.read_drivers(recorded("vm.sysbench-help")) == {"mysql", "pgsql"}


def test_conditions_that_a_machine_does_not_tell_are_none() -> None:
    readings = (
        facts.read_disk, facts.read_mitigations, facts.read_microcode, facts.read_swap, facts.read_nodes,
        facts.read_hypervisor, facts.read_threads, facts.read_steal, facts.read_sum,
        facts.read_synchronised, facts.read_seconds, facts.read_drivers, read_system,
    )  # fmt: skip
    assert {reading.__name__: reading("") for reading in readings} == dict.fromkeys(r.__name__ for r in readings)


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
