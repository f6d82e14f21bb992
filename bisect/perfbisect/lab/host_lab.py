"""The lab that acts on a real host: builds what is not built, times what is ordered, reports what happens."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from perfbisect.core.domain.events import BuildFinished, BuildProgress, LabEvent, RunFinished, Warned
from perfbisect.core.domain.orders import Measure, Purpose, interleave
from perfbisect.errors import BuildChanged, BuildFailed, ConnectionLost, DataDamaged, JobLost, RunFailed
from perfbisect.host.facts import CORES, MEMORY_MIB, ask
from perfbisect.host.packages import missing
from perfbisect.lab import upload
from perfbisect.lab.build import build_store, links
from perfbisect.lab.build.candidates import BuildsMade, Candidates
from perfbisect.lab.build.lab_host import LabHost
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.build_site import BuildSite
from perfbisect.lab.candidate_builds import CandidateBuilds
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.counted_runs import CountedRunner
from perfbisect.lab.measure.visit import RunContext, Runner, SlowRuns, Study, StudyMaker, Turn
from perfbisect.lab.retry_policy import RetryPolicy
from perfbisect.lab.server import config
from perfbisect.lab.server.service import System, owner
from perfbisect.lab.upkeep import tidy
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.dataset_keeper import DatasetKeeper
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values
from perfbisect.recipes.requested import ServerConfig
from perfbisect.recipes.workload import Workload


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known of a host from what a hunt has done there: what is fixed since. 0: as it is now."""

    builds: Mapping[str, str] = field(default_factory=dict)  # commit → key of its build
    datasets: Mapping[str, str] = field(default_factory=dict)  # commit → key of its data
    events: int = 0  # length of counted runs
    longest: float = 0.0  # seconds of the longest run
    memory_mib: int = 0
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Who does the work of a lab; complete once its hosts have been prepared."""

    builds: CandidateBuilds
    data: DatasetKeeper
    runner: Runner | CountedRunner | Study
    retry: RetryPolicy
    values: Values  # placeholders that all candidates share


@dataclass
class HostLab:
    """Measures candidates on one host. Nothing is done there before the first measurement.

    ``variant`` "" is the recipe's own choice. ``build_places`` are the hosts that build; none: the host itself. What they
    have built is ``made``, if other labs share them; events of builds on another host have its name then. ``counted`` is how instructions are counted exactly there, if all that is wanted of a run is their number. With ``study`` that is done
    in place of timed runs.
    """

    place: LabHost
    builder: Builder
    variant: str
    workload: Workload
    candidates: Candidates
    earlier: Earlier = field(default_factory=Earlier)
    build_places: tuple[LabHost, ...] = ()
    slow: SlowRuns = field(default_factory=SlowRuns)
    counted: str = ""
    seeds: LayoutSeeds | None = None  # of fresh layouts; None where no build is to be linked again
    study: StudyMaker | None = None
    made: BuildsMade | None = None
    training: tuple[Workload, ...] = ()  # with which builds are trained, where they are optimised with a profile
    config: ServerConfig = field(default_factory=ServerConfig)  # of its servers, beside the recipe

    def __post_init__(self) -> None:
        """The parts are constructed at the first measurement."""
        self._parts: Parts | None = None

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build what is not built, then time the runs of ``order`` in interleaved order; in fresh layouts if that says so.

        Ends early when a candidate fails, turns out to be the binary of another, or is stopped as too slow in the search,
        which decides again then.
        Raises EnvironmentFailure when the machine cannot do the work, or nothing can be measured at all.
        """
        if self._parts is None:
            with self.place.lock:
                self._parts = yield from self._prepare()
        turns: list[Turn] = []
        while True:
            for share in order.plan:
                if not (yield from self._parts.builds.obtain(share.candidate)):
                    return
            turns = turns or self._turns(order)
            if not turns:
                return
            made: dict[tuple[int, int], str] = {}  # candidate and layout → key of what is installed
            try:
                if (yield from self._link(self._parts, turns, made)):
                    with self.place.lock:
                        yield from self._time(self._parts, turns, made)
                return
            except BuildChanged as changed:
                if not (yield from self._renew(self._parts, turns, made, changed)):
                    return
            finally:
                for key in made.values():
                    self._parts.builds.unlink(key)

    def _renew(
        self, parts: Parts, turns: Sequence[Turn], made: Mapping[tuple[int, int], str], changed: BuildChanged
    ) -> Generator[LabEvent, None, bool]:
        """Have a build, or a layout of it, made again; false where that was of no use: then what changed it is its failure."""
        built = parts.builds.made.built
        keys = ((built[turn.candidate].facts.key, made.get((turn.candidate, turn.layout))) for turn in turns)
        turn = next(turn for turn, known in zip(turns, keys, strict=True) if changed.key in known)
        if not parts.retry.changed(changed.key):
            failure = changed.__context__
            if not isinstance(failure, RunFailed):
                failure = RunFailed(str(changed), stage="run", log=built[turn.candidate].facts.log)
            yield from self._failed(parts, turn, failure, time.monotonic())
            return False
        yield Warned(
            f"{self.candidates.name(turn.candidate)}: {changed}: it is made again",
            "Let what is measured write elsewhere, as below {data}: each time that it changes its build costs a build.",
        )
        parts.builds.renew(changed)
        return True

    def _prepare(self) -> Generator[LabEvent, None, Parts]:
        """End what a killed session has left running on the host, remove what it left, and bring what runs need."""
        host, entry, candidates = self.place.host, self.place.entry, self.candidates
        made = self.made or BuildsMade(candidates, self.earlier.builds)
        yield from made.tidy_once(host.name, tidy(host))
        retry = RetryPolicy(host, candidates, self.workload.name)
        absent = missing(host, ["vmstat", "iostat"])  # the preflight checks warn of what is missing
        cores = self.earlier.cores or ask(host, CORES) or 1
        values: Values = {
            "recipe": str(upload.place_recipe(host, self.builder)),
            "jobs": entry.jobs or cores,
            **config.sizes(entry, self.earlier.memory_mib or ask(host, MEMORY_MIB) or 0, cores),
        }
        counter = counting.counter(host, self.counted) if self.counted else None
        if counter and (random := counter.randomness(host.name)):
            yield Warned(*random)
        context = RunContext(
            host,
            entry,
            self.workload,
            lua.place(host, self.workload),
            perf=not counter and perf.counts(host),
            vmstat=not counter and "vmstat" not in absent,
            iostat=not counter and bool(entry.device) and "iostat" not in absent,
            counter=counter,
            longest=self.earlier.longest,
        )
        runner: Runner | CountedRunner | Study
        if self.study:
            runner = self.study(context, retry.succeeded)
        elif counter:
            runner = CountedRunner(context, retry.succeeded, self.earlier.events)
        else:
            runner = Runner(context, self.slow, retry.succeeded)
        sites = [
            BuildSite(
                place, self.builder, self.variant, candidates, made,
                layouts=self.seeds is not None, named=self.made is not None and place.host.name != host.name,
                training=self.training,
            )
            for place in self.build_places or (self.place,)
        ]  # fmt: skip
        data = DatasetKeeper(host, self.workload, self.earlier.datasets)
        return Parts(CandidateBuilds(sites, host, candidates, made), data, runner, retry, values)

    def _load(self, parts: Parts, candidate: int) -> Generator[LabEvent, None, bool]:
        """Load the data of a candidate; true when it is loaded."""
        began = time.monotonic()
        while True:
            try:
                yield from parts.data.load(self._system(parts, candidate))
                return True
            except JobLost as lost:
                yield (event := parts.retry.lost(candidate, lost, "prepare", began))
                if not isinstance(event, Warned):
                    return False
            except RunFailed as failure:
                yield parts.retry.failed(candidate, failure, began)
                return False

    def _turns(self, order: Measure) -> list[Turn]:
        """The runs of a measurement in their order. Successive runs of one build in one layout share a visit of its server."""
        sequence = interleave(order.plan)
        fixed, commits = self.candidates.layouts, self.candidates.commits
        seeds = (
            {each: self.seeds.following(commits[each]) for each in set(sequence)} if order.fresh and self.seeds else {}
        )
        layouts = [next(seeds[each]) if seeds else fixed.get(each, 0) for each in sequence]
        turns, first = [], 1
        for (candidate, layout), neighbours in groupby(zip(sequence, layouts, strict=True)):
            runs = len(list(neighbours))
            turns.append(Turn(candidate, first, runs, len(sequence), order.purpose, left=runs, layout=layout))
            first += runs
        return turns

    def _link(
        self, parts: Parts, turns: Sequence[Turn], made: dict[tuple[int, int], str]
    ) -> Generator[LabEvent, None, bool]:
        """Link builds again for turns in layouts, before any is timed; true when all are linked. ``made`` gets their keys."""
        began = time.monotonic()
        wanted = [turn for turn in turns if turn.layout and turn.left]
        for done, turn in enumerate(wanted):
            yield BuildProgress(turn.candidate, done, len(wanted), links.LINK)
            try:
                made[turn.candidate, turn.layout] = parts.builds.link(turn.candidate, turn.layout)
            except BuildFailed as failure:
                yield from self._failed(parts, turn, failure, began)
                return False
            except ConnectionLost as lost:
                yield parts.builds.give_up(turn.candidate, lost)
                return False
        host = self.place.host
        if made:
            build_store.note(host, [build_store.folder(host, key) for key in made.values()])
        return True

    def _failed(self, parts: Parts, turn: Turn, failure: BuildFailed | RunFailed, began: float) -> Iterator[LabEvent]:
        """A build could not be measured. If it failed in a fresh layout only, it is not skipped: layouts are given up.

        But a candidate that is one layout is skipped.
        """
        if not (self.seeds and turn.layout) or turn.candidate in self.candidates.layouts:
            yield parts.retry.failed(turn.candidate, failure, began)
            return
        built = parts.builds.made.built[turn.candidate]
        reason = str(failure) if isinstance(failure, BuildFailed) else f"in layout {turn.layout}, {failure}"
        facts = replace(built.facts, reused=True, seconds=0.0, linker="", fixed=reason)
        parts.builds.made.built[turn.candidate] = replace(built, facts=facts)
        name = self.candidates.name(turn.candidate)
        yield Warned(
            f"{name} cannot be measured with its functions in another order: {reason}",
            "The hunt goes on with builds as they are linked; `--no-layouts` does so from the beginning.",
        )
        yield BuildFinished(turn.candidate, facts, None)

    def _time(self, parts: Parts, turns: Sequence[Turn], made: Mapping[tuple[int, int], str]) -> Generator[LabEvent]:
        """The runs of a measurement, everything built; ``made`` has the keys of builds in layouts."""
        parts.builds.end_others()
        for candidate in sorted({turn.candidate for turn in turns}):
            if not self._is_loaded(parts, candidate) and not (yield from self._load(parts, candidate)):
                return
        for turn in turns:
            if not (yield from self._run(parts, turn, made.get((turn.candidate, turn.layout), ""))):
                return

    def _is_loaded(self, parts: Parts, candidate: int) -> bool:
        return self.candidates.commits[candidate] in parts.data.keys

    def _run(self, parts: Parts, turn: Turn, made: str) -> Generator[LabEvent, None, bool]:
        """Successive runs of a candidate, as linked again where that has the key ``made``; true when all ended well.

        A run that was stopped as too slow has. But in the search, one is enough to decide again.
        """
        candidate, began = turn.candidate, time.monotonic()
        while turn.left:
            if not self._is_loaded(parts, candidate) and not (yield from self._load(parts, candidate)):
                return False
            system = replace(self._system(parts, candidate, made), layout=turn.layout)
            key = parts.data.keys[system.commit]
            try:
                for event in parts.runner.visit(system, key, turn):
                    if self.seeds and isinstance(event, RunFinished):
                        self.seeds.take(event.facts)
                    yield event
            except JobLost as lost:
                if turn.left:  # a server that is lost after its last run has done its work
                    yield (event := parts.retry.lost(candidate, lost, "run", began))
                    if not isinstance(event, Warned):
                        return False
            except DataDamaged as damaged:
                yield parts.data.damaged(key, damaged)
            except RunFailed as failure:
                if not turn.left:  # how a server ends does not change what it did before
                    name = self.candidates.name(candidate)
                    yield Warned(f"{name}: {failure}", "Its runs had ended well, and count.")
                elif not parts.data.refuse(system, key, failure):
                    self._system(parts, candidate, made)  # raises where the build has changed: then that comes first
                    yield from self._failed(parts, turn, failure, began)
                    return False
            if turn.stopped and turn.purpose is Purpose.SEARCH:
                return False
        return True

    def _system(self, parts: Parts, candidate: int, made: str = "") -> System:
        """A built candidate, or its layout with the key ``made``, at the path where every build is measured.

        A server that may not run as root keeps the place where it is installed elsewhere: it may lack the right to read
        the folders above ours. Raises BuildChanged where the build is not as it was made.
        """
        built = parts.builds.made.built[candidate]
        host = self.place.host
        if built.prefix and owner(host, built.builder.server):
            prefix = built.prefix
        else:
            prefix = build_store.put_in_place(host, self.builder.work_name, made or built.facts.key, built.prefix)
        sha = self.candidates.sha(candidate)
        values = {**parts.values, "commit": sha, "prefix": str(prefix), "version": built.version}
        builder = self.config.applied(built.builder)
        return System(self.candidates.commits[candidate], built.facts.key, prefix, builder, values)
