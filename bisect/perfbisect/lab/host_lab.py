"""The lab that acts on a real host: builds what is not built, times what is ordered, tells what happens."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    LabEvent,
    RunFinished,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.interleaving import interleave
from perfbisect.core.domain.orders import Measure
from perfbisect.errors import BuildFailed, DataDamaged, EnvironmentFailure, JobLost, RunFailed, UsageError
from perfbisect.host.facts import BOOT, CORES, MEMORY_MIB, ask, is_full
from perfbisect.host.fair_lock import FairLock
from perfbisect.host.outcome import no_space
from perfbisect.host.programs import missing
from perfbisect.host.protocol import Host
from perfbisect.lab.build import checkout, pipeline, store
from perfbisect.lab.build.transfer import ship
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.progress import Steps
from perfbisect.lab.server import config
from perfbisect.lab.server.installation import System
from perfbisect.lab.server.service import owner
from perfbisect.lab.upkeep.leftovers import tidy
from perfbisect.lab.upload import recipe
from perfbisect.lab.workload import dataset, lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

LOSSES = 3  # in a row: so often work that was lost with its host is done again


@dataclass
class HostLab:
    """Carries out measurements of ``commits``, the commit of each candidate, on one host.

    A candidate of ``prebuilt`` binaries has the name that people gave it in place of a commit. ``describe`` tells of a commit what people know it by; ``variant`` "" is the recipe's own choice.
    """

    host: Host
    entry: HostEntry
    builder: Builder
    variant: str
    workload: Workload
    repository: Path
    commits: tuple[str, ...]
    describe: Callable[[str], Commit]
    known: Mapping[str, str] = field(default_factory=dict)  # commit → key of its build in earlier sessions of the hunt
    ends: Mapping[str, str] = field(default_factory=dict)  # commit → what to call it when it fails: "the good end"
    prebuilt: Mapping[int, pipeline.Built] = field(default_factory=dict)  # candidate → what needs no building
    ranged: bool = True  # the commits are a range, nothing without its ends; or else each stands for itself
    loaded: Mapping[str, str] = field(default_factory=dict)  # commit → key of its data in earlier sessions of the hunt
    memory: int = 0  # MiB of the host when the hunt began; 0: what it has now
    cores: int = 0  # the same of its processors
    maker: Host | None = None  # where builds are made, if not here
    maker_entry: HostEntry | None = None
    quiet: FairLock = field(default_factory=FairLock)  # who has it may work on ``host``
    quiet_maker: FairLock = field(default_factory=FairLock)  # the same of ``maker``

    def __post_init__(self) -> None:
        """Nothing is done on the host before the first measurement."""
        self._built = dict(self.prebuilt)
        self._shop: pipeline.Workshop | None = None
        self._bench: visit.RunContext | None = None
        self._values: dict[str, str | int] = {}
        self._data: dict[int, str] = {}  # candidate → key of its dataset, once it is there
        # Candidate → keys of data on which it does not start, and why.
        self._refused: dict[int, dict[str, RunFailed]] = {}
        self._verified: set[str] = set()  # keys of data known to be what was loaded
        self._remade: set[str] = set()  # keys of data that were found damaged
        self._alone = False  # no build of an earlier session can be running any more
        self._losses = 0  # in a row
        self._announced = False  # the build that comes next
        self._boots: dict[str, str | None] = {}  # of each host, when the session began

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build what is not built, then time the runs of ``order`` in interleaved order.

        Ends early, for the search to think again, when a candidate fails or turns out to be the binary of another.
        Raises EnvironmentFailure when the machine cannot do the work, or nothing can be measured at all.
        """
        if self._bench is None:
            turns = {self.host.name: self.quiet} | ({self.maker.name: self.quiet_maker} if self.maker else {})
            with ExitStack() as alone:
                for name in sorted(turns):  # everybody in the same order, so that nobody waits for one who waits
                    alone.enter_context(turns[name])
                yield from self._set_up(order.plan[0].candidate)
        for share in order.plan:
            with self.quiet_maker if self.maker else self.quiet:
                if share.candidate not in self._built and not (yield from self._build(share.candidate)):
                    return
        with self.quiet:
            yield from self._time(order)

    def _set_up(self, first: int) -> Generator[LabEvent]:
        """Look at the host once; end what an earlier session that was killed has left running, and tidy up: there, and
        where builds are made.

        ``first`` is what will be built first. Raises UsageError when builds would not be made as in earlier sessions.
        """
        host, device = self.host, self.entry.device
        for each in (host, self.maker) if self.maker else (host,):
            self._boots[each.name] = ask(each, BOOT)
            yield from tidy(each)
        absent = missing(host, ["vmstat", "iostat"])  # the preflight has told of what is missing
        counts = perf.counts(host)
        cores = ask(host, CORES) or 1
        self._values = {
            "recipe": str(recipe.place(host, self.builder)),
            "jobs": self.entry.jobs or self.cores or cores,
            **config.sizes(self.entry, self.memory or ask(host, MEMORY_MIB) or 0, self.cores or cores),
        }
        if commits := [commit for candidate, commit in enumerate(self.commits) if candidate not in self.prebuilt]:
            yield from self._prepare_to_build([commits[0], commits[-1]] if self.ranged else commits, first)
        self._bench = visit.RunContext(
            host,
            self.entry,
            self.workload,
            lua.place(host, self.workload),
            counts,
            "vmstat" not in absent,
            bool(device) and "iostat" not in absent,
        )

    def _prepare_to_build(self, tips: Sequence[str], first: int) -> Generator[LabEvent]:
        """Bring the sources, with all that ``tips`` reach, to where builds are made. Raises UsageError as ``_set_up``."""
        maker = self.maker or self.host
        bare = yield from self._send(maker, tips, first)
        self._shop = pipeline.workshop(maker, self.maker_entry or self.entry, self.builder, self.variant, bare)
        commit = next((commit for commit in self.commits if commit in self.known), None)
        if commit and pipeline.key_of(self._shop, commit) != self.known[commit]:
            raise UsageError(
                f"{commit[:10]} would now be built in another way than earlier in this hunt, so the runs of then and of "
                "now cannot be compared.",
                f"The recipe of {self.builder.name} or the compiler has changed: undo that, or begin a new hunt.",
            )

    def _send(self, maker: Host, tips: Sequence[str], first: int) -> Generator[LabEvent, None, PurePosixPath]:
        """Bring the sources to the host that builds, as a part of the first build; returns where they are."""
        sending = Steps(checkout.mirror(maker, self.repository, self.builder.place, tips))
        for done, total in sending:
            if not self._announced:
                self._announced = True
                yield BuildStarted(first, self.describe(self.commits[first]))
            yield BuildProgress(first, done, total, "send")
        return sending.result

    def _build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Build a candidate; true when it is there, and is worth being measured."""
        assert self._shop
        commit = self.commits[candidate]
        if not self._announced:
            yield BuildStarted(candidate, self.describe(commit))
        self._announced = False
        began = time.monotonic()
        built: pipeline.Built | None = None
        while built is None:
            making = Steps(pipeline.build(self._shop, commit))
            try:
                for step in making:
                    yield BuildProgress(candidate, step.done, step.total, step.stage)
                built = making.result
            except JobLost as lost:
                yield (told := self._lost(self.maker or self.host, candidate, lost, "compile", began))
                if isinstance(told, CandidateSkipped):
                    return False
            except BuildFailed as failure:
                yield self._failed(candidate, failure, began)
                return False
            finally:
                making.work.close()
        if self.maker:
            yield BuildProgress(candidate, 0, 0, "ship")
            ship(self.maker, self.builder.place, built.facts.key, self.host)
        made_here = not (built.facts.reused or self.maker)  # then it has ended every other
        self._alone, self._losses = self._alone or made_here, 0
        binary = built.facts.binary
        same = next((other for other, known in self._built.items() if known.facts.binary == binary), None)
        self._built[candidate] = built
        yield BuildFinished(candidate, built.facts, same)
        return same is None

    def _time(self, order: Measure) -> Generator[LabEvent, None, None]:
        """The runs of a measurement, everything built. Neighbours of one build share a server's visit."""
        assert self._bench
        if not self._alone:
            pipeline.end_all(self.host)
            self._alone = True
        turns = interleave(order.plan)
        for candidate in sorted({*turns} - self._data.keys()):
            if not (yield from self._load(candidate)):
                return
        number = 0
        for candidate, neighbours in groupby(turns):
            runs, began = len(list(neighbours)), time.monotonic()
            left = runs
            while left:
                if candidate not in self._data and not (yield from self._load(candidate)):
                    return
                try:
                    system = self._system(candidate)
                    batch = left if system.builder.server else 1
                    with visit.begin(self._bench, system, candidate, self._data[candidate]) as opened:
                        for _ in range(batch):
                            done = number + runs - left + 1
                            yield RunStarted(candidate, done, len(turns), order.purpose, self._bench.planned)
                            facts = yield from visit.run(opened)
                            left, self._losses = left - 1, 0
                            yield RunFinished(candidate, facts)
                except JobLost as lost:
                    if left:  # a server that is lost after its last run has done its work
                        yield (told := self._lost(self.host, candidate, lost, "run", began))
                        if isinstance(told, CandidateSkipped):
                            return
                except DataDamaged as damaged:
                    yield self._damaged(self._data[candidate], damaged)
                except RunFailed as failure:
                    if not left:  # how a server ends does not change what it did before
                        yield Warned(
                            f"{self.commits[candidate][:10]}: {failure}", "Its runs had ended well, and count."
                        )
                    elif not self._refuses(candidate, self._data[candidate], failure):
                        yield self._failed(candidate, failure, began)
                        return
            number += runs

    def _load(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Load the data for a candidate, or find it loaded and as it was; true when it is there."""
        began = time.monotonic()
        found = ""
        while candidate not in self._data:
            try:
                system = self._system(candidate)
                data = dataset.make(self.host, system, self.workload, [*self._refused.get(candidate, ())])
                found = data.key
                self._check_known(system.commit, found)
                if not (data.fresh or found in self._verified):
                    dataset.verify(self.host, system, self.workload, found)
                self._verified.add(found)
                self._data[candidate] = found
            except JobLost as lost:
                yield (told := self._lost(self.host, candidate, lost, "prepare", began))
                if isinstance(told, CandidateSkipped):
                    return False
            except DataDamaged as damaged:
                yield self._damaged(found, damaged)
            except RunFailed as failure:
                if not self._refuses(candidate, found, failure):
                    yield self._failed(candidate, failure, began)
                    return False
        if refused := self._refused.get(candidate):
            key, why = list(refused.items())[-1]
            yield Warned(
                f"{self.commits[candidate][:10]} does not start on the data {key}, which another build has loaded, and is"
                f" given {self._data[candidate]}: {why}",
                "If that happens to many commits, let the recipe's dataset.format_command tell what they differ in.",
            )
        return True

    def _check_known(self, commit: str, key: str) -> None:
        """Raise UsageError when a commit's data, and so its settings, are not those of earlier sessions of the hunt."""
        if commit in self.loaded and dataset.kind(self.loaded[commit]) != dataset.kind(key):
            raise UsageError(
                f"{commit[:10]} would now be run with other settings or data than before, so the runs of then and of"
                " now cannot be compared.",
                f"The recipe of {self.builder.name}, workload {self.workload.name}, hosts.toml or perfbisect has changed:"
                " undo that, or begin a new hunt.",
            )

    def _damaged(self, key: str, damaged: DataDamaged) -> Warned:
        """Remove damaged data, and say that it is loaded again. Raises the error where that has been done before."""
        if key in self._remade:
            damaged.advice = (
                f"It was loaded again in this session already: the disk of host {self.host.name} may be failing."
            )
            raise damaged
        self._remade.add(key)
        self._verified.discard(key)
        self._data = {candidate: known for candidate, known in self._data.items() if known != key}
        dataset.remove(self.host, key)
        return Warned(f"{damaged}: it is loaded again")

    def _refuses(self, candidate: int, key: str, failure: RunFailed) -> bool:
        """Whether a server did not start on data that another build has loaded: it is to be given other data then."""
        refused = self._refused.setdefault(candidate, {})
        if not key or failure.stage != "start" or key in refused:
            return False
        if dataset.loader(self.host, key) == self._built[candidate].facts.key:
            return False
        refused[key] = failure
        self._data.pop(candidate, None)
        return True

    def _lost(self, host: Host, candidate: int, lost: JobLost, stage: str, began: float) -> Warned | CandidateSkipped:
        """What is said of work lost on ``host`` before it is done again; or that it gets itself killed, as by taking all
        memory.

        Raises the loss when it is one too many and that host has been restarted meanwhile.
        """
        self._losses += 1
        if self._losses <= LOSSES:
            return Warned(f"{lost}: it is done again", "The host was restarted, or somebody killed it there.")
        if ask(host, BOOT) != self._boots[host.name]:
            raise lost
        self._losses = 0
        reason = f"it was killed {LOSSES + 1} times in a row, perhaps for taking all memory (see `dmesg`)"
        return self._failed(candidate, RunFailed(reason, stage=stage, log=str(host.root / "jobs")), began)

    def _system(self, candidate: int) -> System:
        """A built candidate, put where every build is measured.

        Only what is installed elsewhere stays there for a server that may not be root: not everywhere in our folders
        would it see itself.
        """
        commit, built = self.commits[candidate], self._built[candidate]
        server = built.builder.server
        if built.prefix and owner(self.host, server):
            prefix = built.prefix
        else:
            prefix = store.put_in_place(self.host, self.builder.place, built.facts.key, built.prefix)
        sha = "" if candidate in self.prebuilt else commit
        values = {**self._values, "commit": sha, "prefix": str(prefix), "version": built.version}
        return System(commit, built.facts.key, prefix, built.builder, values)

    def _failed(self, candidate: int, failure: BuildFailed | RunFailed, began: float) -> CandidateSkipped:
        """A candidate that cannot be measured.

        Raises EnvironmentFailure when the disk is full, which is not the candidate's fault, and when it is an end of
        the range: without it nothing can be found, and most often it is the machine or the recipe that has to be
        mended, after which the hunt can go on.
        """
        commit = self.commits[candidate]
        name = commit if candidate in self.prebuilt else commit[:10]
        if is_full(self.host):
            raise no_space(self.host.name, f"{name} cannot be measured: {failure}") from failure
        if self.ranged and candidate in (0, len(self.commits) - 1):
            end = self.ends.get(commit, "an end of the range")
            what = "cannot be built" if isinstance(failure, BuildFailed) else f"fails in workload {self.workload.name}"
            raise EnvironmentFailure(
                f"nothing can be compared, because {end}, {name}, {what}: {failure}", failure.advice
            ) from failure
        seconds = time.monotonic() - began
        return CandidateSkipped(candidate, SkipFacts(commit, failure.stage, str(failure), failure.log, seconds))
