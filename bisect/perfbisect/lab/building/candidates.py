"""The candidates of a session with their numbers and commits, and a registry that says which host has built each
candidate.

If commits fail to build with a known error, one of these commits is built again with compiler options that prevent the
error. If this build succeeds, the hunt makes all later builds with these options.
"""

import shlex
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from perfbisect.core.domain.events import Commit, Remedied, Warned
from perfbisect.core.domain.settings import Flags, Patch
from perfbisect.errors import BuildFailed, EnvironmentFailure, JobLost, UsageError
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import Host
from perfbisect.lab.building import pipeline
from perfbisect.lab.building.commit_build import incremental_key
from perfbisect.lab.building.log_parser import BuildStep, KnownFailure
from perfbisect.lab.building.plan import BuildContext, InstalledBuild
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.git import Repository

ALIKE = 3  # candidates that fail for one reason before its remedy is tried


class FairLock:
    """A lock that threads acquire in the sequence of their requests (FIFO)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.waiting: deque[object] = deque()  # an object for each thread; the first thread holds the lock

    def __enter__(self) -> None:
        mine = object()
        with self._changed:
            self.waiting.append(mine)
            self._changed.wait_for(lambda: self.waiting[0] is mine)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.waiting.popleft()
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class LabHost:
    """A host on which a lab (the part that builds and measures) works. Several labs may share the host; a lab holds
    ``lock`` while it works.

    A short task that only reads or writes files of the host, for instance to send a build to another host, holds
    ``short_task_lock``. On a host that only builds, ``short_task_lock`` is a second lock (``second_lock``), so that
    short tasks do not wait until the present build ends. New builds are copied from the host to the store ``shared``,
    and existing builds are copied from this store to the host.
    """

    host: Host
    entry: HostEntry
    lock: FairLock = field(default_factory=FairLock)
    second_lock: FairLock | None = None
    shared: SharedBuilds | None = None
    host_lock: HostLock | None = None  # held by the session; None: the caller of the work holds a lock

    @property
    def short_task_lock(self) -> FairLock:
        """The lock that short tasks hold, which only read or write files of the host."""
        return self.second_lock or self.lock


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a session. The number of a candidate is its index in ``commits``, which contains hashes of
    commits, or, for prebuilt binaries, the names that the user gave.
    """

    repository: Repository | None  # None if no candidate has to be built
    commits: tuple[str, ...]
    describe: Callable[[str], Commit]  # date, author and title of a commit
    ends: Mapping[str, str] = field(default_factory=dict)  # commit → its name in a message: "the good revision"
    prebuilt: Mapping[int, InstalledBuild] = field(default_factory=dict)  # candidate → a build that exists already
    patches: tuple[Patch, ...] = ()  # applied to every commit for which they are
    has_remedies: bool = False  # whether compiler options that prevent a known error are tried
    is_linear: bool = True  # whether all candidates are ancestors of the last candidate
    is_range: bool = True  # whether the first and the last candidate must build; otherwise candidates are independent

    def display_name(self, candidate: int) -> str:
        """The name of a candidate in messages."""
        commit = self.commits[candidate]
        return commit if candidate in self.prebuilt else commit[:10]

    def sha(self, candidate: int) -> str:
        """The hash of a candidate's commit; "" for prebuilt binaries."""
        return "" if candidate in self.prebuilt else self.commits[candidate]

    def end_name(self, candidate: int) -> str:
        """The name of an end of the range, such as "the good revision", if the candidate is this end; otherwise ""."""
        if not self.is_range or candidate not in (0, len(self.commits) - 1):
            return ""
        return self.ends.get(self.commits[candidate], "an end of the range")

    def commits_to_fetch(self) -> Sequence[str]:
        """A list that contains each commit to build, or a descendant of this commit."""
        commits = [commit for candidate, commit in enumerate(self.commits) if candidate not in self.prebuilt]
        return [commits[0], commits[-1]] if commits and self.is_range and self.is_linear else commits


# A remedy may include a header before the source defines _GNU_SOURCE, so that functions stay undeclared. A compiler
# lets an undeclared function return an int, which loses half of a pointer. These options make this conversion an error.
POINTER_ERRORS = Flags("-Werror=int-conversion -Werror=int-to-pointer-cast")
MAX_REMEDIES = 3  # successive remedies of a build: a compiler may report only the first missing header


class RemedyWorked(Exception):
    """Raised if a commit that failed to build can be built with additional compiler options. All later builds of the
    hunt are made with these options."""

    def __init__(self, event: Remedied) -> None:
        super().__init__(event.why)
        self.event = event


def build_with_remedy(context: BuildContext, sha: str, failure: KnownFailure) -> Generator[BuildStep | Warned]:
    """Repeat the build of a commit that failed with a known error, with compiler options that prevent the error. Raises
    RemedyWorked if the build succeeds with these options."""
    error, flags = failure.known, context.builder.flags
    for _ in range(MAX_REMEDIES):
        mended = flags.with_missing(error.flags)
        undone = "-Wno-error=int-" in error.flags.cflags and POINTER_ERRORS.cflags in flags.cflags
        if mended == flags or undone or not error.by_itself:
            return
        flags = mended.with_missing(POINTER_ERRORS) if "-include" in error.flags.cflags else mended
        options = shlex.join(flags.arguments)
        warning = f"{sha[:10]} does not build because of {error.name}; perfbisect builds it again with {error.remedy}"
        yield Warned(warning, "--no-remedies switches this off.")
        try:
            yield from pipeline.build_commit(
                replace(context, builder=msgspec.structs.replace(context.builder, flags=flags)), sha
            )
        except (BuildFailed, JobLost) as again:
            yield Warned(f"with {options}: {again}", again.advice)
            if not isinstance(again, KnownFailure):
                return
            error = again.known
        else:
            text = f"{sha[:10]} builds only with {options}, because of {failure.known.name}"
            raise RemedyWorked(Remedied(flags, text))


class BuildRegistry:
    """Records which candidates are built, and the name of the host that has each build. A thread that changes the
    builds holds ``lock``."""

    def __init__(
        self, candidates: Candidates, known: Mapping[str, str] | None = None, places: Mapping[str, str] | None = None
    ) -> None:
        """Prebuilt candidates count as built. ``known`` maps each commit that an earlier attempt has built to the key
        of the build; ``places`` maps the commit to the host of the build.
        """
        self.built: dict[int, InstalledBuild] = dict(candidates.prebuilt)
        self.places: dict[int, str] = {}
        self.contexts: dict[str, BuildContext] = {}  # host → the context of all its builds, from its first build on
        self.lost: set[str] = set()  # hosts that make no further builds
        self.lock = threading.RLock()
        self._candidates = candidates
        self._earlier = known or {}
        self._earlier_places = places or {}
        self._tidied: set[str] = set()
        self._failed: dict[str, set[int]] = {}  # class of a known error → candidates
        self._first: tuple[str, str, str] | None = None  # host, commit and key of the session's first build

    def host_of(self, candidate: int) -> str:
        """The name of the host that has built a candidate, in this attempt or in an earlier attempt at the session; ""
        if no host has built the candidate."""
        return self.places.get(candidate) or self._earlier_places.get(self._candidates.commits[candidate], "")

    def check_and_add_host(self, context: BuildContext, candidate: int) -> None:
        """Add a host that builds; ``candidate`` is the first candidate that the host will build.

        Raises UsageError if this host would now make other builds than earlier in the hunt (for instance with another
        compiler), and EnvironmentFailure if this host would make other builds than another host of the hunt.
        """
        name, commits, earlier = context.host.name, self._candidates.commits, self._earlier
        built = next((commit for commit in commits if commit in earlier), None)
        key = pipeline.build_key_of_commit(context, built) if built else ""
        if built and earlier[built] not in (key, incremental_key(key)):
            raise UsageError(
                f"{built[:10]} would now be built in another way than earlier in this hunt, so earlier and later runs"
                " cannot be compared.",
                f"The recipe of {context.builder.name}, its compiler or a linker has changed. Undo the change, or begin a new hunt.",
            )
        with self.lock:
            if self._first is None:
                with suppress(BuildFailed):  # the commit cannot be checked out, which its build will report
                    self._first = name, commits[candidate], pipeline.build_key_of_commit(context, commits[candidate])
            elif self._first[0] != name and pipeline.build_key_of_commit(context, self._first[1]) != self._first[2]:
                first_host, commit, _ = self._first
                raise EnvironmentFailure(
                    f"hosts {name} and {first_host} would build {commit[:10]} differently: their compilers differ",
                    "Their builds could not be compared. Install the same compilers on all build hosts.",
                )
            self.contexts[name] = context

    def tidy_host_once(self, host: str, tidying: Iterator[Warned]) -> Iterator[Warned]:
        """On the first call for a host, end the processes and remove the files that earlier sessions have left on the
        host. Yields warnings about these processes and files."""
        with self.lock:
            first = host not in self._tidied
            self._tidied.add(host)
        if first:
            yield from tidying

    def add(self, candidate: int, built: InstalledBuild, host: str) -> int | None:
        """Add a build. Returns the first candidate that has the same binary; None if no earlier candidate has the same
        binary."""
        self.built[candidate], self.places[candidate] = built, host
        first = self.first_with_same_binary(candidate)
        return None if first == candidate else first

    def why_other_program_file(self, built: InstalledBuild) -> str:
        """A sentence that says why a program of this build may be a different file than in an earlier build. The reason
        is that a part of the tree failed to compile in one of the two builds. "" if no program is a different file."""
        builds = [build for build in self.built.values() if build.facts.system == built.facts.system]
        for partial, complete in [*((built, build) for build in builds), *((build, built) for build in builds)]:
            for program, (path, *rivals) in partial.facts.programs.items() if partial.facts.partial else ():
                chosen = complete.facts.programs.get(program)
                if chosen[0] != path if chosen else rivals or program in partial.builder.started:
                    sentence = f"{program} is {path} in a build of which a part failed ({partial.facts.partial})"
                    return f"{sentence}, and {chosen[0] if chosen else program} elsewhere"
        return ""

    def should_try_remedies(self, candidate: int, failure: KnownFailure) -> bool:
        """Whether to try compiler options that prevent a known error: true if the failed candidate is an end of the
        range, or if it is the ALIKE-th candidate that fails with this error."""
        with self.lock:
            alike = self._failed.setdefault(failure.known.name, set())
            alike.add(candidate)
            many = len(alike) == ALIKE or bool(self._candidates.end_name(candidate))
            return self._candidates.has_remedies and many

    def has_build(self, candidate: int, *, clean: bool) -> bool:
        """Whether a candidate is built. If ``clean`` is true, only a clean build (not an incremental build) counts."""
        is_built = (
            candidate in self.places or candidate in self._candidates.prebuilt
        )  # a prebuilt candidate has no host
        return is_built and not (clean and self.built[candidate].facts.incremental)

    def first_with_same_binary(self, candidate: int) -> int:
        """The first built candidate that has the same binary as ``candidate``, which must be built."""
        binary = self.built[candidate].facts.binary
        with self.lock:
            return next(number for number, build in self.built.items() if build.facts.binary == binary)
