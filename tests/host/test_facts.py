from pathlib import Path, PurePosixPath

from perfbisect.host import facts
from perfbisect.host.local import LocalHost

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
