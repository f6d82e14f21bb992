"""What a hunt is refused, and what it is warned of. Programs are taken away by a PATH that has only some."""

import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.build.toolchain import NEEDED, compilers
from perfbisect.lab.checks import CheckRequest, Level, preflight
from perfbisect.recipes.builder import Build, Builder, Packages, Server, Variant
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload
from program import executable

WORKLOAD = Workload(name="w", suite="s", driver="pgsql", summary="", group="point", statement="select 1")
HERE = HostEntry(name="here")
OTHERS = "sysbench sh env df cat lscpu uname perf vmstat gcc true test taskset grep head ls mktemp cp rm date"
USED = {*NEEDED, *preflight.TO_MEASURE, *OTHERS.split()}
VIRTUAL = (Path(__file__).parents[2] / "outputs" / "perf-virtual.csv").read_text()
WITHOUT_COUNTERS = f"#!/bin/sh\ncat >&2 <<'END'\n{VIRTUAL}END\n"
SERVER = Server(initialise=[["a"]], start=["b"], ready=["c"])


def builder(needs: list[str] | None = None, **changes: object) -> Builder:
    build = Build(compile=[["make", "CC={cc}"]], install=[], artifacts=["x"], needs=needs or [])
    usual = Builder(name="b", summary="", driver="d", variants={"o2nofp": Variant()}, build=build)
    return replace(usual, **changes)


def built(**changes: object) -> Builder:
    """One whose build is another."""
    return replace(builder(), build=replace(builder().build, **changes))


def inspection_of(
    host: LocalHost, recipe: Builder | None = None, metric: str = "qps", **entry: object
) -> tuple[Warned, ...]:
    there = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    return warned(CheckRequest(host, there, metric, recipe or builder(), "", (WORKLOAD,)))


def warned(request: CheckRequest) -> tuple[Warned, ...]:
    return preflight.warnings(preflight.findings(preflight.inspect_host(request)))


def needed(entry: HostEntry, recipe: Builder, variant: str) -> list[str]:
    nowhere = LocalHost("here", PurePosixPath("nowhere"))
    request = CheckRequest(nowhere, entry, builder=recipe, variant=variant)
    compiling = compilers(recipe.build, variant_of(recipe, variant)) if recipe.build else []
    return [*preflight.needed(request), *compiling]


@pytest.fixture
def take_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def only(*gone: str, **replaced: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        for program in USED - {*gone}:
            found = shutil.which(program)
            if program in replaced:
                executable(folder / program, replaced[program])
            elif found:
                (folder / program).symlink_to(found)
        monkeypatch.setenv("PATH", str(folder))

    return only


def test_only_the_compilers_that_a_variant_uses_are_needed() -> None:
    """A compiler that is only in the environment may be absent."""
    recipe = builder(variants={"o2nofp": Variant(), "other": Variant(cc="clang")})
    compilers = {"gcc", "g++", "clang"}
    for of, variant, used in (
        (recipe, "", {"gcc"}),
        (recipe, "other", {"clang"}),
        (built(env={"CXX": "{cxx}"}), "", {"gcc"}),
        (built(compile=[["make", "CC={cc}", "CXX={cxx}"]]), "", {"gcc", "g++"}),
    ):
        assert compilers & {*needed(HERE, of, variant)} == used


def test_what_is_needed_to_run() -> None:
    """Nothing to build, where nothing is; taskset for pinned processors, setpriv for a server that refuses root."""
    programs = {*needed(HERE, builder(build=None), "")}
    assert "sysbench" in programs
    assert not {"git", "ccache", "gcc", "ld", "objcopy"} & programs
    assert not {"taskset", "setpriv"} & {*needed(HERE, builder(), "")}
    assert "taskset" in needed(HostEntry(client_cpus="0"), builder(), "")
    assert "setpriv" in needed(HERE, builder(server=replace(SERVER, refuses_root=True)), "")


def test_a_command_needs_no_sysbench(host: LocalHost) -> None:
    command = replace(WORKLOAD, statement="", command=["bench"])
    for workloads, is_needed in ((None, True), ((WORKLOAD,), True), ((command,), False), ((command, WORKLOAD), True)):
        assert ("sysbench" in preflight.needed(CheckRequest(host, HERE, workloads=workloads))) == is_needed


@pytest.mark.tools
@pytest.mark.parametrize(
    ("program", "package", "recipes"),
    [
        ("ccache", "ccache", [builder()]),
        ("bison", "bison", [builder(["bison"])]),
        ("cmp", "diffutils", [builder(), builder(build=None)]),  # which compares a build before each visit
    ],
)
def test_a_missing_program_is_named_with_its_package(
    host: LocalHost, take_away: Callable[..., None], program: str, package: str, recipes: list[Builder]
) -> None:
    take_away(program)
    for recipe in recipes:
        with pytest.raises(EnvironmentFailure, match=f"{program} is not installed on host here") as caught:
            inspection_of(host, recipe)
        assert f"apt-get install {package}" in caught.value.advice


@pytest.mark.tools
def test_what_a_build_needs_is_looked_for_where_it_belongs(host: LocalHost) -> None:
    needs = ["make", "stdio.h", "no/such.h", "no-such-program"]
    own = {"no/such.h": Packages(debian="libno-dev", fedora="no-devel")}
    recipe = replace(built(needs=needs, packages=own), debian="lib-dev", fedora="x")
    for entry in ({}, {"build_hosts": ["here"]}):
        with pytest.raises(EnvironmentFailure, match=r"^no-such-program, no/such\.h are not installed") as caught:
            inspection_of(host, recipe, **entry)
    assert "install no-such-program libno-dev" in caught.value.advice
    assert "apt-get build-dep lib-dev" in caught.value.advice


@pytest.mark.tools
def test_a_host_that_builds_nothing_needs_nothing_to_build_with(
    host: LocalHost, take_away: Callable[..., None]
) -> None:
    request = CheckRequest(host, HostEntry(name="here", build_hosts=["x"]), builder=builder(["no/such.h"]))
    [finding, *_] = preflight.tools(preflight.inspect_host(request))
    assert (finding.topic, finding.advice) == ("builder", "Check with: bisect doctor x --builder b")
    take_away(*NEEDED, "gcc")
    inspection_of(host, build_hosts=["x"])
    with pytest.raises(EnvironmentFailure, match=r"git.*not installed on host here"):
        inspection_of(host, build_hosts=["here"])


REFUSING = "#!/bin/sh\necho 'Error: consider adjusting /proc/sys/kernel/perf_event_paranoid setting' >&2\nexit 255\n"


@pytest.mark.tools
@pytest.mark.parametrize(
    ("gone", "replaced", "text", "advice"),
    [
        (["perf"], {}, "perf is not installed", "apt-get install"),
        ([], {"perf": REFUSING}, "perf is not permitted", "sysctl kernel.perf_event_paranoid=1"),
    ],
)
def test_without_perf_qps_can_be_hunted_and_cpu_cannot(
    host: LocalHost, take_away: Callable[..., None], gone: list[str], replaced: dict[str, str], text: str, advice: str
) -> None:
    take_away(*gone, **replaced)
    assert any(text in each.text and advice in each.advice for each in inspection_of(host, metric="qps"))
    with pytest.raises(EnvironmentFailure, match=f"{text}.*cpu/o cannot be measured"):
        inspection_of(host, metric="cpu/o")


@pytest.mark.tools
def test_a_perf_that_neither_counts_nor_samples(host: LocalHost, take_away: Callable[..., None]) -> None:
    """Without samples a verdict names no functions, and every hunt goes on."""
    take_away(perf=WITHOUT_COUNTERS)
    assert len([warning for warning in inspection_of(host) if "no hardware counters" in warning.text]) == 1
    with pytest.raises(EnvironmentFailure, match="does not count instructions, cycles"):
        inspection_of(host, metric="ipc")
    for notes in (True, False):  # hunts show no notes, and do not try it
        request = preflight.inspect_host(CheckRequest(host, HERE, notes=notes))
        found = [each for each in preflight.findings(request) if each.topic == "profiles"]
        assert len(found) == notes
        assert all(each.level is Level.NOTE and "perf takes no samples on host here" in each.text for each in found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"script": "typo.lua"}, r"Workload s/w names a script that does not exist: .*typo\.lua"),
        ({"prepare_script": "typo.lua"}, "does not exist"),
        ({"driver": "unheard"}, r"no sql\.lua runs it with unheard"),
        ({"time": 0.5}, "whole seconds"),
    ],
)
def test_a_workload_that_cannot_run_is_refused_at_once(
    host: LocalHost, change: dict[str, str | float], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        warned(CheckRequest(host, HERE, "qps", builder(), "", (WORKLOAD, replace(WORKLOAD, **change))))


@pytest.mark.tools
@pytest.mark.parametrize("key", ["server_cpus", "client_cpus"])
def test_a_cpu_that_the_host_does_not_have_is_refused(host: LocalHost, key: str) -> None:
    with pytest.raises(UsageError, match=rf"hosts\.here\.{key}` is \"0,9998-10002:2\".*no CPU 9998"):
        inspection_of(host, **{key: "0,9998-10002:2"})
    inspection_of(host, **{key: "0"})


@pytest.mark.tools
@pytest.mark.parametrize(
    ("device", "gone", "sentence"),
    [("no-such", "", "has no block device no-such"), ("/dev/sda", "iostat", "iostat is not installed")],
)
def test_a_device_that_cannot_be_watched(
    host: LocalHost, take_away: Callable[..., None], device: str, gone: str, sentence: str
) -> None:
    take_away(gone) if gone else None
    assert any(sentence in warning.text for warning in inspection_of(host, device=device))
    with pytest.raises(EnvironmentFailure, match=rf"{sentence}.*, so wKB/o cannot be measured"):
        inspection_of(host, device=device, metric="wKB/o")
    with pytest.raises(EnvironmentFailure, match=r"no device is chosen.*r/o cannot be measured"):
        inspection_of(host, metric="r/o")


@pytest.mark.tools
def test_without_hardware_counters_valgrind_counts_what_is_embedded(
    host: LocalHost, take_away: Callable[..., None], tmp_path: Path
) -> None:
    embedded, served = builder(), builder(server=SERVER)
    loop = Workload(name="loop", suite="s", driver="lib", summary="", group="g", command=["loop", "{events}"])

    def request(builder: Builder, workload: Workload) -> CheckRequest:
        return CheckRequest(host, HERE, "instructions/o", builder, "", (workload,))

    take_away(perf=WITHOUT_COUNTERS)
    with pytest.raises(EnvironmentFailure, match="does not count instructions") as refused:
        warned(request(embedded, loop))
    assert "install valgrind" in refused.value.advice
    executable(tmp_path / "bin" / "valgrind", "#!/bin/sh\necho valgrind-3.21.0\n")
    said = [finding.text for finding in preflight.findings(preflight.inspect_host(request(embedded, loop)))]
    assert any("counted exactly by valgrind 3.21.0" in text for text in said)
    warned(request(embedded, loop))
    for recipe, workload, reason in (
        (served, WORKLOAD, "is a server"),
        (embedded, replace(loop, threads=2), "2 threads"),
    ):
        with pytest.raises(EnvironmentFailure, match=rf"nor can valgrind count it here: .*{reason}"):
            warned(request(recipe, workload))
