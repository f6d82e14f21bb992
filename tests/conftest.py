"""Every test is sealed off: its own home, no git configuration of the machine, fixed names and dates."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from machine import PROJECT, Machine, here, why_not
from perfbisect.host import lock
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.lab.building import pipeline
from perfbisect.lab.building.toolchain import Toolchain, toolchain
from perfbisect.recipes.builder import Variant
from perfbisect.recipes.inventory import HostEntry
from program import executable
from repos import WHO, Repo

# On a busy machine everything takes long. No change fails for examples that the last one did not have by chance: others
# are looked for with `--hypothesis-profile=search`.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", PATIENT)
settings.register_profile("repeated", PATIENT, derandomize=True)
settings.load_profile("repeated")

# Hundreds of tests start the program, which is compiled once, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A process started in the background of a script inherits that SIGINT is ignored, and passes it on to the programs that
# tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write gigabytes that are not kept: a file system in memory, where there is room, spares them the disk.
ROOM = 8 << 20  # KiB of memory
with suppress(OSError, StopIteration):
    shared = os.statvfs("/dev/shm")
    facts = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable:"))
    if not shared.f_flag & os.ST_NOEXEC and min(shared.f_bavail * shared.f_frsize >> 10, available) > ROOM:
        os.environ.setdefault("TMPDIR", "/dev/shm")
        tempfile.tempdir = None  # pytest has asked for it already

# Hunts of tests wait for no other process of tests, also those in fixtures that several tests share. See ``seal``.
LOCKS = tempfile.mkdtemp(prefix="perfbisect-locks-")
os.environ["PERFBISECT_LOCKS"] = LOCKS
atexit.register(shutil.rmtree, LOCKS, ignore_errors=True)

# Tests that share a history are one user, in whatever home.
MAKER = "tester@here:0123456789abcdef"
os.environ["XDG_STATE_HOME"] = LOCKS
(Path(LOCKS) / "perfbisect").mkdir()
(Path(LOCKS) / "perfbisect" / "maker").write_text(MAKER)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """A lock folder for each fixture that several tests share: what one of them has begun keeps no other waiting."""
    if fixturedef.scope != "function":
        os.environ["PERFBISECT_LOCKS"] = tempfile.mkdtemp(dir=LOCKS)


# By markers; tests without one take milliseconds. A hunt on a server builds it, and takes as long as all the others.
LONGEST_FIRST = ({"e2e", "dbms"}, {"e2e"}, {"calibration"}, {"dbms"}, {"tools"})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests start first, so that no worker is left alone with one at the end."""

    def rank(item: pytest.Item) -> int:
        markers = {marker.name for marker in item.iter_markers()}
        return next((rank for rank, names in enumerate(LONGEST_FIRST) if names <= markers), len(LONGEST_FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder at each step. pytest's own numbering reads all names again for each new one."""
    place = tmp_path_factory.mktemp("homes")
    return (place / str(number) for number in count())


# The builds of a host have a cache in its root folder, which is new in each test.
CCACHE = """\
#!/bin/sh
case $CCACHE_DIR in */ccache) CCACHE_DIR={shared}; esac
exec {ccache} "$@"
"""


@pytest.fixture(scope="session")
def shared_ccache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with a ccache that keeps what all tests of the run compile, in all processes, in one place."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-ccache"
    if ccache := shutil.which("ccache"):
        text = CCACHE.format(shared=place / "cache", ccache=ccache)
        made = executable(place / f"made-{os.getpid()}" / "ccache", text)
        made.replace(made.parents[1] / "ccache")
    return place


PATH = os.environ["PATH"]
KNOWN: dict[tuple[str, str], Toolchain] = {}


def known_toolchain(host: Host, variant: Variant) -> Toolchain:
    """The compilers of this machine are asked what they are once in a process, and not before each build: six programs."""
    names = (variant.cc, variant.cxx)
    mine = type(host) is LocalHost and os.environ["PATH"].rpartition("/shared-ccache:")[2] == PATH
    if not mine or "/" in "".join(names):  # a compiler of the test
        return toolchain(host, variant)
    if names not in KNOWN:
        KNOWN[names] = toolchain(host, variant)
    return KNOWN[names]


@pytest.fixture(autouse=True)
def seal(
    homes: Iterator[Path], shared_ccache: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A fresh home folder for each test."""
    home = next(homes)
    state = home / ".local" / "state" / "perfbisect"
    state.mkdir(parents=True)
    (state / "maker").write_text(MAKER)
    for name in list(os.environ):
        if name.startswith(("GIT_", "XDG_", "CCACHE_", "PERFBISECT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    if not request.node.get_closest_marker("own_ccache"):
        monkeypatch.setenv("PATH", str(shared_ccache), prepend=":")
    monkeypatch.setenv("PERFBISECT_LOCKS", str(home / "locks"))  # no test waits for another one
    monkeypatch.setattr(pipeline, "toolchain", known_toolchain)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    yield home
    for (
        place
    ) in lock._waited.values():  # queues, where this process stays until it ends: it would come up in other tests
        place.release()
    lock._waited.clear()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """This machine, with a root folder that is empty."""
    return here(tmp_path / "root")


@pytest.fixture
def git(tmp_path: Path) -> Repo:
    """A new repository at ``tmp_path/repo``; see ``repos``."""
    return Repo(tmp_path / "repo")


@pytest.fixture
def make_machine(seal: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Machine]]:
    """``make_machine(*hidden, known=True, shell=…, port=…)``: machines that see nothing of this project and of the tests."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as until_the_end:

        def make(*hidden: Path, known: bool = True, **options: Any) -> Machine:
            made = Machine(seal / ".ssh", [PROJECT, tmp_path_factory.getbasetemp(), *hidden], **options)
            until_the_end.callback(made.remove)
            if known:
                made.make_known()
            return made

        yield make


@pytest.fixture
def machine(make_machine: Callable[..., Machine]) -> Machine:
    """Another machine, which can be reached over ssh."""
    return make_machine()


@pytest.fixture
def far(machine: Machine) -> Iterator[SshHost]:
    """That machine as a host."""
    with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as host:
        assert isinstance(host, SshHost)
        yield host
