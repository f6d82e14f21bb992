"""What makes measurements vary, read from what different machines print."""

from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host import conditions, facts
from perfbisect.host.facts import Fact, ask, ask_all
from perfbisect.host.local import LocalHost
from perfbisect.host.packages import read_system

OUTPUTS = Path(__file__).parents[1] / "outputs" / "facts"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


def test_processors() -> None:
    vm, server = recorded("vm.lscpu"), recorded("server.lscpu")
    assert [conditions.read_nodes(vm), conditions.read_nodes(server)] == [1, 2]
    assert [conditions.read_threads(vm), conditions.read_threads(server)] == [1, 2]
    assert [conditions.read_hypervisor(vm), conditions.read_hypervisor(server)] == ["KVM", None]
    assert conditions.read_steal(recorded("server.stat")) == pytest.approx(250 / 9251, rel=1e-4)
    assert conditions.read_steal(recorded("vm.stat")) == pytest.approx(0.00394, rel=0.01)
    assert conditions.read_sum("12\n0\n30\n") == 42


def test_memory_and_disk() -> None:
    assert conditions.read_swap(recorded("vm.swaps")) == (0, 0)
    assert conditions.read_swap(recorded("server.swaps")) == (12287, 1280)
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
    assert conditions.read_synchronised("NTPSynchronized=no\n") is False
    assert conditions.read_ports(recorded("vm.tcp")) == {2024}
    assert conditions.read_drivers(recorded("vm.sysbench-help")) == {"mysql", "pgsql"}


def test_what_a_machine_does_not_tell_is_none() -> None:
    readings = (
        facts.read_disk, facts.read_mitigations, facts.read_microcode, conditions.read_swap, conditions.read_nodes,
        conditions.read_hypervisor, conditions.read_threads, conditions.read_steal, conditions.read_sum,
        conditions.read_synchronised, conditions.read_seconds, conditions.read_drivers, read_system,
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


def test_this_machine(tmp_path: Path) -> None:
    host = LocalHost("here", PurePosixPath(tmp_path))
    assert ask(host, conditions.reflinks(host)) in ("yes", "no")
    assert not list(tmp_path.iterdir())
    assert ask(host, conditions.TIME) is not None
    assert ask(host, conditions.SWAP) is not None
    assert ask(host, conditions.PORTS) is not None
