"""Facts that are read from a machine, and the commands that install missing programs and files."""

import shutil
from pathlib import Path, PurePosixPath

import pytest

from fake_host import FakeHost
from perfbisect.host import facts
from perfbisect.host.facts import Fact, read_fact, read_facts
from perfbisect.host.local import LocalHost
from perfbisect.host.packages import (
    HEADERS,
    LIBRARY,
    Package,
    how_to_install,
    how_to_install_build_dependencies,
    known_packages,
    missing_needs,
    system_family,
)

OUTPUTS = Path(__file__).parents[1] / "outputs" / "facts"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


READ = {
    facts.CPU: {"vm.lscpu": "AMD EPYC", "server.lscpu": "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz"},
    facts.PROCESSOR_MODEL: {"vm.lscpu": "AMD EPYC (cpu family 25, model 1)"},
    facts.CORES: {"vm.lscpu": 2, "server.lscpu": 24},
    facts.NODES: {"vm.lscpu": 1, "server.lscpu": 2},
    facts.THREADS: {"vm.lscpu": 1, "server.lscpu": 2},
    facts.HYPERVISOR: {"vm.lscpu": "KVM", "server.lscpu": None},
    facts.MEMORY_MIB: {"vm.meminfo": 24105},
    facts.SWAP_TOTAL_AND_USED_MIB: {"vm.swaps": (0, 0), "server.swaps": (12287, 1280)},
    facts.COMPILER: {"vm.gcc": "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"},
    facts.STEAL_SHARE: {
        "server.stat": pytest.approx(250 / 9251, rel=1e-4),
        "vm.stat": pytest.approx(0.00394, rel=0.01),
    },
    facts.LISTENING_PORTS: {"vm.tcp": {2024}},
    facts.DRIVERS: {"vm.sysbench-help": {"mysql", "pgsql"}},
    facts.SETTINGS["mitigations"]: {
        "server.vulnerabilities": "l1tf Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable;"
        " meltdown Mitigation: PTI",
    },
    facts.file_system_fact(FakeHost("x", {})): {"vm.df-types": "ext4, 251 GiB"},
    facts.free_bytes_fact(PurePosixPath("/")): {"vm.df": int(recorded("vm.df").splitlines()[1])},
}


@pytest.mark.parametrize("fact", READ, ids=lambda fact: " ".join(fact.argv[:3]))
def test_facts_are_read_from_recorded_outputs(fact: Fact[object]) -> None:
    assert {name: fact.read(recorded(name)) for name in READ[fact]} == READ[fact]


def test_facts_are_read_from_parts_of_outputs() -> None:
    assert facts.LOAD.read("12.50 3.05 1.07 2/95 6722\n") == 12.5
    versions = [facts.TOOLS["git"].read(line) for line in recorded("vm.tools").splitlines()]
    assert versions == ["2.39.5", "4.7.5", "1.0.20", "6.1.187", "2.38.1"]
    assert facts.TOOLS["perf"].read("perf version 6.8.0-51-generic") == "6.8.0-51-generic"
    assert facts.THROTTLED.read("12\n0\n30\n") == 42
    assert facts.SYNCHRONISED.read("NTPSynchronized=no\n") is False
    systems = [facts.SYSTEM.read(recorded(f"{name}.os-release")) for name in ("vm", "ubuntu", "server")]
    assert systems == ["debian", "ubuntu", "fedora"]


def test_fact_without_output_is_none() -> None:
    named = [fact for fact in vars(facts).values() if isinstance(fact, Fact)]
    every = {
        fact
        for fact in (*named, *READ, *facts.TOOLS.values(), *facts.SETTINGS.values())
        if fact != facts.LISTENING_PORTS
    }
    assert len(every) > 30
    assert [fact for fact in every if fact.read("") is not None] == []


def test_settings_of_a_machine_are_read() -> None:
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


def test_fingerprint_of_this_machine_is_complete_and_repeatable(tmp_path: Path) -> None:
    host = LocalHost("here", PurePosixPath(tmp_path))
    found = facts.read_fingerprint(host, facts.read_facts(host, facts.fingerprint_facts(host)))
    assert found.name == "here"
    assert found.cores >= 1
    assert found.memory_mib > 100
    assert found.tools["git"][0].isdigit()
    assert found == facts.read_fingerprint(host, facts.read_facts(host, facts.fingerprint_facts(host)))
    assert facts.read_fact(host, facts.Fact(("no-such-program",), facts.first_line)) is None
    assert (facts.free_bytes(host) or 0) > 0
    assert read_fact(host, facts.reflink_fact(host)) in ("yes", "no")
    assert not list(tmp_path.iterdir())
    for fact in (facts.LOAD, facts.TIME, facts.SWAP_TOTAL_AND_USED_MIB, facts.LISTENING_PORTS):
        assert read_fact(host, fact) is not None


def test_list_of_cpus_is_read_in_the_notation_of_taskset() -> None:
    assert facts.cpu_numbers("0-2,8") == {0, 1, 2, 8}
    assert facts.cpu_numbers("0-6:3,1") == {0, 1, 3, 6}


def test_many_facts_are_read_by_one_command(tmp_path: Path) -> None:
    """Words of a command are quoted. A failed command gives no fact, and empty output gives an empty fact."""
    odd = "$(touch x) 'a' \"b\"\nlast"
    commands = (("printf", "%s", odd), ("true",), ("false",), ("no-such-program-here",), ("printf", "%s", odd))
    asked = [Fact(command, str) for command in commands]
    found = read_facts(LocalHost("here", PurePosixPath(tmp_path)), asked)
    assert [found.get(fact) for fact in asked] == [odd, "", None, None, odd]
    assert found.get(Fact(("never", "asked"), str)) is None
    assert not list(tmp_path.iterdir())


# Packages


APT, DNF = "sudo apt-get install", "sudo dnf install"
ADVICE = [
    ("setsid taskset g++", "fedora", f"Install with: {DNF} util-linux gcc-c++"),
    ("perf", "debian", f"Install with: {APT} linux-perf"),
    ("perf git", "ubuntu", f"Install with: {APT} linux-tools-generic git"),
    ("openssl/ssl.h libssl.pc", "debian", f"Install with: {APT} libssl-dev"),
    ("bison libzstd.pc", "fedora", f"Install with: {DNF} bison libzstd-devel"),
    ("odd/odd.h odd.pc", "fedora", f"Install with: {DNF} /usr/include/odd/odd.h 'pkgconfig(odd)'"),
    ("odd/odd.h odd.pc", "debian", "To find the packages of odd/odd.h, odd.pc: apt-file search odd/odd.h"),
    ("libaio.so.1 odd.so.2", "fedora", f"Install with: {DNF} libaio 'odd.so.2()(64bit)'"),
    ("libaio.so.1 odd.so.2", "debian", f"Install with: {APT} libaio1. To find the packages of odd.so.2: apt-file search odd.so.2"),
    ("odd.h make", "ubuntu", f"Install with: {APT} make. To find the packages of odd.h: apt-file search odd.h"),
    ("zlib.h g++", "", "Install with: apt-get install zlib1g-dev g++ (Debian, Ubuntu), or dnf install zlib-devel gcc-c++ (Fedora, RHEL)"),
    ("odd.h", "", "Install with: dnf install /usr/include/odd.h (Fedora, RHEL). To find the packages of odd.h: apt-file search odd.h (Debian)"),
]  # fmt: skip


@pytest.mark.parametrize(("needs", "system", "advice"), ADVICE)
def test_install_command_has_the_packages_of_the_system(needs: str, system: str, advice: str) -> None:
    assert how_to_install(needs.split(), system) == advice


def test_packages_of_a_recipe_override_known_packages() -> None:
    names = {"odd.h": ("libodd-dev", "odd-devel"), "zlib.h": ("zlib-ng-dev", ""), "tool": ("tools", "")}
    own = {need: Package(*each) for need, each in names.items()}
    for system, command in (
        ("debian", f"{APT} libodd-dev zlib-ng-dev tools"),
        ("fedora", f"{DNF} odd-devel /usr/include/zlib.h tool"),
    ):
        assert how_to_install([*own], system, own) == f"Install with: {command}"


def test_known_packages_of_headers_are_development_packages() -> None:
    files = [named for need, named in known_packages().items() if need.endswith((*HEADERS, LIBRARY))]
    assert len(files) > 30
    assert all(named.debian.endswith("-dev") and named.fedora.endswith("-devel") for named in files)


SYSTEMS = {
    'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="8.9"\n': "fedora",
    'ID="almalinux"\nID_LIKE="rhel centos fedora"\n': "fedora",
    "# a comment\n\n  ID='debian'  \n": "debian",
    'NAME="Debian"\nID=devuan\nID_LIKE=debian\n': "debian",
    'ID=linuxmint\nID_LIKE="ubuntu debian"\n': "ubuntu",
    "ID=pop\nID_LIKE='ubuntu debian'\r\n": "ubuntu",
    "ID=Ubuntu\n": "ubuntu",
    'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n': None,
    'PRETTY_NAME="Debian"\nBUG_ID=debian\n': None,
    "no assignment\n": None,
    "": None,
}


def test_system_family_is_read_from_os_release() -> None:
    assert {text: system_family(text) for text in SYSTEMS} == SYSTEMS


@pytest.mark.tools
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("pkg-config")), reason="needs g++ and pkg-config")
def test_missing_needs_of_a_recipe_are_listed(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / "a b"
    include.mkdir()
    (include / "mine.h").write_text("FILE *needs_stdio;\n")
    (include / "mine.hpp").write_text("#include <vector>\n")
    (include / "mine.pc").write_text("Name: mine\nDescription: x\nVersion: 1\n")
    (include / "poor.h").write_text("#include <no/such.h>\n")
    monkeypatch.setenv("PKG_CONFIG_PATH", str(include))
    needs = ["sh", "stdio.h", "mine.h", "mine.hpp", "mine.pc", "poor.h", "no-such.h", "no-such.pc", "no-such"]
    with_include = f"-I'{include}'"
    assert missing_needs(host, needs, f"gcc {with_include}", f"g++ {with_include}") == (
        "no-such", "poor.h", "no-such.h", "no-such.pc",
    )  # fmt: skip
    assert missing_needs(host, ["mine.h", "mine.hpp"], "gcc", "g++") == ("mine.h", "mine.hpp")


@pytest.mark.tools
def test_missing_gcc_and_pkgconfig_are_listed(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_needs(host, ["stdio.h", "a.hpp", "b.hpp", "zlib.pc"], "gcc -O2", "g++") == (
        "pkg-config",
        "gcc",
        "g++",
    )


def test_command_for_build_dependencies_depends_on_the_system() -> None:
    for system, described, command in (
        ("debian", True, "sudo apt-get build-dep libpq-dev"),
        ("ubuntu", False, "sudo apt-get build-dep libpq-dev (needs a `deb-src` line in /etc/apt)"),
        ("fedora", False, "sudo dnf builddep postgresql-server"),
        ("", True, "apt-get build-dep libpq-dev (Debian, Ubuntu) or dnf builddep postgresql-server (Fedora, RHEL)"),
    ):
        advice = how_to_install_build_dependencies(
            Package("libpq-dev", "postgresql-server"), system, has_source_lines=described
        )
        assert advice == f"To install all build dependencies of the distribution's package: {command}"
    assert how_to_install_build_dependencies(Package("", "x"), "debian") == ""
    assert how_to_install_build_dependencies(Package("x", ""), "fedora") == ""
    assert how_to_install_build_dependencies(Package("", "")) == ""
    assert "dnf" not in how_to_install_build_dependencies(Package("x", ""))
