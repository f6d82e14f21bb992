"""Each test has its own home folder, no git configuration of the machine, and fixed names and dates."""

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

# No deadline, because a busy machine is slow. Examples are the same in each run, so that an unrelated change fails no
# test; `--hypothesis-profile=search` tries other examples.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", PATIENT)
settings.register_profile("repeated", PATIENT, derandomize=True)
settings.load_profile("repeated")

# Hundreds of tests start the program: Python must store its bytecode, even if the environment forbids it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A background process of a script ignores SIGINT, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write gigabytes of temporary files: into a file system in memory, if it has room.
ROOM = 8 << 20  # KiB of memory
with suppress(OSError, StopIteration):
    shared = os.statvfs("/dev/shm")
    facts = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable:"))
    if not shared.f_flag & os.ST_NOEXEC and min(shared.f_bavail * shared.f_frsize >> 10, available) > ROOM:
        os.environ.setdefault("TMPDIR", "/dev/shm")
        tempfile.tempdir = None  # pytest has already read it

# Hunts do not wait for other test processes, also not in fixtures that several tests share. See ``seal``.
LOCKS = tempfile.mkdtemp(prefix="perfbisect-locks-")
os.environ["PERFBISECT_LOCKS"] = LOCKS
atexit.register(shutil.rmtree, LOCKS, ignore_errors=True)

# Tests that share a history have different home folders, but are one user for the history.
MAKER = "tester@here:0123456789abcdef"
os.environ["XDG_STATE_HOME"] = LOCKS
(Path(LOCKS) / "perfbisect").mkdir()
(Path(LOCKS) / "perfbisect" / "maker").write_text(MAKER)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Make a lock folder for each shared fixture, so that its hunts do not block other tests."""
    if fixturedef.scope != "function":
        os.environ["PERFBISECT_LOCKS"] = tempfile.mkdtemp(dir=LOCKS)


# Sets of markers. Tests without markers take milliseconds; a hunt that builds a server takes as long as all others.
LONGEST_FIRST = ({"e2e", "dbms"}, {"e2e"}, {"calibration"}, {"dbms"}, {"tools"})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long tests first, so that no worker still runs a long test at the end."""

    def rank(item: pytest.Item) -> int:
        markers = {marker.name for marker in item.iter_markers()}
        return next((rank for rank, names in enumerate(LONGEST_FIRST) if names <= markers), len(LONGEST_FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders. pytest's tmp_path_factory would read all existing names for each new folder."""
    place = tmp_path_factory.mktemp("homes")
    return (place / str(number) for number in count())


# A ccache that uses one cache in all tests. Without it, each test has an empty cache in the root folder of its host.
CCACHE = """\
#!/bin/sh
case $CCACHE_DIR in */ccache) CCACHE_DIR={shared}; esac
exec {ccache} "$@"
"""


@pytest.fixture(scope="session")
def shared_ccache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with a ccache whose cache all tests of all worker processes share."""
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
    """The compilers of this machine, read once in a process instead of before each build, which starts six programs."""
    names = (variant.cc, variant.cxx)
    mine = type(host) is LocalHost and os.environ["PATH"].rpartition("/shared-ccache:")[2] == PATH
    if not mine or "/" in "".join(names):  # a compiler that the test made
        return toolchain(host, variant)
    if names not in KNOWN:
        KNOWN[names] = toolchain(host, variant)
    return KNOWN[names]


@pytest.fixture(autouse=True)
def seal(
    homes: Iterator[Path], shared_ccache: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A new home folder for each test."""
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
    monkeypatch.setenv("PERFBISECT_LOCKS", str(home / "locks"))  # tests do not wait for each other
    monkeypatch.setattr(pipeline, "toolchain", known_toolchain)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    yield home
    for place in lock._waited.values():  # this process would stay in the queues of hosts, and block other tests
        place.release()
    lock._waited.clear()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """This machine as a host with an empty root folder."""
    return here(tmp_path / "root")


@pytest.fixture
def git(tmp_path: Path) -> Repo:
    """A new repository at ``tmp_path/repo``; see ``repos``."""
    return Repo(tmp_path / "repo")


@pytest.fixture
def make_machine(seal: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Machine]]:
    """``make_machine(*hidden, known=True, shell=…, port=…)`` makes a machine without this project's files."""
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
    """Another machine that can be reached over ssh."""
    return make_machine()


@pytest.fixture
def far(machine: Machine) -> Iterator[SshHost]:
    """The fixture ``machine`` as a host."""
    with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as host:
        assert isinstance(host, SshHost)
        yield host
