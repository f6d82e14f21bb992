"""Optimisation with a profile: a build that counts what it executes, training, and a build by these counts.

Both are made at the same paths, by which the compiler finds the counts of each object file again. They are kept in
``root/work/BUILDER/profile`` until the second build is made. That they differ a little from one training to the next is no
part of a build's key: variant, workloads and options are.

ccache is switched off for both builds: counts are never the same twice, and paths, which it rewrites, name them.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder, Variant

FOLDER = "profile"  # below that of the fixed paths
TRAIN = "train"  # the stage
ENVIRONMENT = {"CCACHE_DISABLE": "1"}
_MERGED = "merged.profdata"  # clang's counts of all processes

_UNREADABLE = "no profile can be merged"  # what clang's program says where no file could be read

_EMPTY = 'rm -rf -- "$1" && mkdir -p -- "$1"'
# $1 the folder, $2 the compiler, $3 its name. Prints one file with counts, nothing where there are none. A process that was
# killed while it wrote leaves a file that cannot be read: it is left out.
_FINISH = f"""\
cd -- "$1" || exit
if [ "$3" = clang ] && [ -n "$(find . -name '*.profraw' -size +0 | head -n 1)" ]; then
    merge=$("$2" -print-prog-name=llvm-profdata) && "$merge" merge --failure-mode=all --output={_MERGED} -- *.profraw || exit
fi
find . -type f '(' -name '*.gcda' -o -name {_MERGED} ')' -size +0 | head -n 1
"""


class Phase(StrEnum):
    """Which of the builds of a commit it is."""

    PLAIN = ""  # the only one
    INSTRUMENTED = "instrumented"  # counts what it executes
    OPTIMISED = "optimised"  # is made by these counts


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A build that is to be trained; it is where every build is installed first."""

    commit: str
    key: str  # of the build that it is made for
    builder: Builder  # its conditions applied
    version: str
    prefix: PurePosixPath


class Training(Protocol):
    """How builds of a variant are trained on a host."""

    @property
    def identity(self) -> str:
        """What belongs to the keys of builds; equal on all hosts."""
        ...

    @property
    def named(self) -> str:
        """The workloads, for a message."""
        ...

    def check(self) -> None:
        """Raise EnvironmentFailure when the host lacks what the workloads need; before anything is built."""
        ...

    def train(self, build: Instrumented, reset: Callable[[], None]) -> Iterator[Warned]:
        """Run the workloads once; calls ``reset`` between loading of data and the first run. Raises BuildFailed."""
        ...


def options(variant: Variant, compiler: str, phase: Phase, folder: PurePosixPath) -> Variant:
    """The variant with what the compiler ("gcc" or "clang") needs in that phase; ``folder`` is that of the counts."""
    if phase is Phase.PLAIN:
        return variant
    place = shlex.quote(str(folder))
    if phase is Phase.INSTRUMENTED:
        further = f"-fprofile-generate={place}"
        atomic = " -fprofile-update=prefer-atomic" if compiler == "gcc" else ""  # threads count together
        added = further + atomic, further
    elif compiler == "clang":
        use = f"-fprofile-use={shlex.quote(str(folder / _MERGED))}"
        quiet = "-Wno-profile-instr-unprofiled -Wno-profile-instr-out-of-date -Wno-profile-instr-missing"
        added = f"{use} {quiet}", use
    else:
        # Code that was never executed has no counts. A file that is compiled twice under one name has those of one.
        use = f"-fprofile-use={place}"
        added = f"{use} -fprofile-correction -Wno-missing-profile -Wno-error=coverage-mismatch", use
    cflags, ldflags = (
        f"{own} {new}".strip() for own, new in zip((variant.cflags, variant.ldflags), added, strict=True)
    )
    return msgspec.structs.replace(variant, cflags=cflags, ldflags=ldflags)


def identity(training: Training | None, variant: Variant, compiler: str) -> dict[str, object]:
    """What belongs to the key of a build; nothing where none is trained."""
    if training is None:
        return {}
    made = (options(variant, compiler, phase, PurePosixPath(FOLDER)) for phase in (Phase.INSTRUMENTED, Phase.OPTIMISED))
    return {"training": [training.identity, *([each.cflags, each.ldflags] for each in made)]}


def empty(host: Host, folder: PurePosixPath) -> None:
    """Begin without counts: remove those that are there."""
    host.run(["sh", "-c", _EMPTY, "empty", str(folder)], timeout=600)


def remove(host: Host, folder: PurePosixPath) -> None:
    """Remove the counts."""
    host.run(["rm", "-rf", "--", str(folder)], timeout=600)


def finish(host: Host, folder: PurePosixPath, variant: Variant, compiler: str) -> bool:
    """Make the counts ready for use; false where there are none, or none that can be read.

    Raises EnvironmentFailure where clang's program for it is absent, of another version, or cannot write.
    """
    done = host.run(["sh", "-c", _FINISH, "finish", str(folder), variant.cc, compiler], check=False, timeout=600)
    if not done.ok:
        if _UNREADABLE in done.stderr and "version" not in done.stderr:
            return False
        raise EnvironmentFailure(
            f"the profile cannot be merged on host {host.name}: {done.stderr.strip()[:300]}",
            "clang needs llvm-profdata of its own version: apt-get install llvm",
        )
    return bool(done.stdout)
