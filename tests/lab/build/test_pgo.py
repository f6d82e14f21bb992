"""The options of builds with a profile, and what belongs to their keys."""

import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import pgo
from perfbisect.lab.build.links import why_fixed
from perfbisect.lab.build.pgo import Phase, options
from perfbisect.lab.training import LIMIT, SECONDS, Trainer, shortened
from perfbisect.recipes.builder import Builder, Server, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, load_training

FOLDER = PurePosixPath("/a root/profile")
VARIANT = Variant(cflags="-O2", train="*")


@pytest.mark.parametrize(
    ("compiler", "made", "used"),
    [("gcc", "/a root/profile", "/a root/profile"), ("clang", "/a root/profile", "/a root/profile/merged.profdata")],
)
def test_options_follow_those_of_the_variant(compiler: str, made: str, used: str) -> None:
    """Whatever the path of the root."""
    assert options(VARIANT, compiler, Phase.PLAIN, FOLDER) == VARIANT
    counting = options(VARIANT, compiler, Phase.INSTRUMENTED, FOLDER)
    final = options(VARIANT, compiler, Phase.OPTIMISED, FOLDER)
    for variant, option in ((counting, f"-fprofile-generate={made}"), (final, f"-fprofile-use={used}")):
        assert shlex.split(variant.cflags)[:2] == ["-O2", option]
        assert shlex.split(variant.ldflags) == [option]


@pytest.fixture
def trainer() -> Trainer:
    builder = Builder(name="one", folder="/nowhere", summary="", driver="command")
    workload = Workload(
        name="w", suite="s", folder="/nowhere", driver="command", summary="", group="g", command=["true"], time=300.0
    )
    return Trainer(LocalHost("here", PurePosixPath("/nowhere")), HostEntry(), builder, (workload,))


def test_a_training_is_known_by_its_workloads_and_not_by_its_host(trainer: Trainer) -> None:
    known = pgo.identity(trainer, VARIANT, "gcc")
    [workload] = trainer.workloads
    other = msgspec.structs.replace(workload, args={"rows": 10})
    assert pgo.identity(replace(trainer, entry=HostEntry(memory=99, server_cpus="1", jobs=3)), VARIANT, "gcc") == known
    assert pgo.identity(replace(trainer, workloads=(other,)), VARIANT, "gcc") != known
    assert pgo.identity(replace(trainer, workloads=(workload, workload)), VARIANT, "gcc") != known
    assert pgo.identity(trainer, VARIANT, "clang") != known
    assert pgo.identity(None, VARIANT, "gcc") == {}


def test_a_training_is_known_by_the_configuration_of_its_server(trainer: Trainer) -> None:
    """But not by the sizes of the host."""
    server = Server(initialise=[], start=["serve"], ready=["true"], settings={"cache": "{cache}", "sync": True})

    def identity(server: Server, **host: int) -> str:
        builder = msgspec.structs.replace(trainer.builder, server=server)
        return replace(trainer, builder=builder, entry=HostEntry(**host)).identity

    known = identity(server)
    assert known != trainer.identity
    assert identity(server, memory=99) == known
    assert identity(msgspec.structs.replace(server, settings={"cache": "{cache}", "sync": False})) != known
    assert identity(msgspec.structs.replace(server, start=["serve", "--fast"])) != known
    assert identity(msgspec.structs.replace(server, create=[["create"]])) != known


def test_a_training_does_not_depend_on_the_order_of_workloads(trainer: Trainer) -> None:
    first, second = (msgspec.structs.replace(trainer.workloads[0], name=name) for name in "ab")
    builder = msgspec.structs.replace(trainer.builder, variants={"own": VARIANT})
    assert load_training(builder, "own", [second, first]) == (first, second)


def test_a_training_is_short(trainer: Trainer) -> None:
    [workload] = trainer.workloads
    short = shortened(workload)
    assert (short.warmup, short.time, short.timeout) == (0.0, SECONDS, LIMIT)
    own = shortened(msgspec.structs.replace(workload, time=1.0, timeout=5.0))
    assert (own.time, own.timeout) == (1.0, 5.0)
    longer = replace(trainer, workloads=(msgspec.structs.replace(workload, time=3000.0),))
    assert longer.identity == trainer.identity, "what is cut off makes no other build"


CLANG = Variant(cc="clang", cxx="clang++")


@pytest.fixture
def counted(tmp_path: Path) -> tuple[LocalHost, Path]:
    """A host, and a folder on it with the counts of one process, by clang."""
    if not (shutil.which("clang") and shutil.which("llvm-profdata")):
        pytest.skip("no clang with a profile: apt-get install clang llvm libclang-rt-dev")
    folder = tmp_path / "profile"
    words = ["clang", f"-fprofile-generate={folder}", "-x", "c", "-", "-o", str(tmp_path / "program")]
    if subprocess.run(words, input=b"int main(void) { return 0; }", capture_output=True, check=False).returncode:
        pytest.skip("clang has no runtime of profiles: apt-get install libclang-rt-dev")
    subprocess.run([tmp_path / "program"], check=True)
    return LocalHost("here", PurePosixPath(tmp_path)), folder


def test_counts_that_cannot_be_read_are_no_fault_of_the_host(counted: tuple[LocalHost, Path]) -> None:
    """A process that is killed while it writes leaves such a file: beside others it is left out."""
    host, folder = counted
    place = PurePosixPath(folder)
    [whole] = folder.glob("*.profraw")
    (folder / "cut.profraw").write_bytes(whole.read_bytes()[:40])
    assert pgo.finish(host, place, CLANG, "clang")
    (folder / "merged.profdata").unlink()
    whole.unlink()
    assert not pgo.finish(host, place, CLANG, "clang")


def test_counts_of_another_version_are_a_fault_of_the_host(counted: tuple[LocalHost, Path]) -> None:
    host, folder = counted
    [whole] = folder.glob("*.profraw")
    counts = bytearray(whole.read_bytes())
    counts[8] = 99  # the version
    whole.write_bytes(counts)
    with pytest.raises(EnvironmentFailure, match=r"cannot be merged .*version") as raised:
        pgo.finish(host, PurePosixPath(folder), CLANG, "clang")
    assert "apt-get install llvm" in raised.value.advice


def test_the_order_of_functions_is_that_of_the_profile() -> None:
    assert why_fixed(VARIANT)
    assert not why_fixed(Variant(cflags="-O2"))
