"""The lab that acts on a real host: builds what is not built, times what is ordered, reports what happens."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count, groupby, islice, repeat

from perfbisect.core.domain.events import BuildFinished, BuildProgress, LabEvent, PairingChosen, RunFinished, Warned
from perfbisect.core.domain.facts import busiest
from perfbisect.core.domain.orders import Measure, Purpose, interleave
from perfbisect.errors import (
    BuildChanged,
    BuildFailed,
    ConnectionLost,
    DataDamaged,
    EnvironmentFailure,
    JobLost,
    RunFailed,
)
from perfbisect.host.facts import ask
from perfbisect.lab.building import build_store
from perfbisect.lab.building.candidates import BuildsMade, Candidates, LabHost
from perfbisect.lab.building.commit_build import end_all
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.building.log_parser import LINK
from perfbisect.lab.builds import BuildSite, CandidateBuilds
from perfbisect.lab.host_watch import HostWatch, RetryPolicy, with_values
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.rounds import ALLOWED, TRIES, Rounds, TurnsAdvised, shared_cores
from perfbisect.lab.measure.studies import CountedRunner
from perfbisect.lab.measure.visit import RunContext, Runner, SlowRuns, Study, StudyMaker, Turn
from perfbisect.lab.servers import Installation, owner, placeholders
from perfbisect.lab.upkeep import tidy
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.command import Recognition, not_started
from perfbisect.lab.workload.dataset import DatasetKeeper, remove_visit
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
    busiest: float = 0.0  # cores that a run in turns has used, at most
    memory_mib: int = 0
    cores: int = 0


@dataclass
class HostLab:
    """Measures candidates on one host, in turns or two at the same time. Nothing is done there before the first measurement.

    ``variant`` "" is the recipe's own choice. ``build_places`` are the hosts that build; none: the host itself. What they
    have built is ``made``, if other labs share them; events of builds on another host have its name then. ``counted`` is how
    instructions are counted exactly there, if all that is wanted of a run is their number. With ``study`` that is done
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
    seeds: LayoutSeeds | None = None  # of randomized layouts; None where no build is to be linked again
    study: StudyMaker | None = None
    made: BuildsMade | None = None
    training: tuple[Workload, ...] = ()  # with which builds are trained, where they are optimised with a profile
    config: ServerConfig = field(default_factory=ServerConfig)  # of its servers, beside the recipe
    watch: HostWatch | None = None  # of the host, which labs there share; None: whoever measures watches it
    metric: str = ""  # for which its runs must have a value
    builds: CandidateBuilds = field(init=False)  # this and what follows: once the host is prepared
    data: DatasetKeeper = field(init=False)
    runner: Study = field(init=False)
    retry: RetryPolicy = field(init=False)
    values: Values = field(init=False)  # placeholders that all candidates share
    _context: RunContext = field(init=False)
    _prepared: bool = field(default=False, init=False)
    _distrusted: set[int] = field(default_factory=set, init=False)  # candidates whose incremental build has failed
    _busiest: float = field(init=False)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build what is not built, then time the runs of ``order`` in interleaved order; in randomized layouts if that says so.

        Ends early when a candidate fails, turns out to be the binary of another, or is stopped as too slow in the search,
        which decides again then.
        Raises EnvironmentFailure when the machine cannot do the work, or nothing can be measured at all; and as
        ``HostWatch.guard`` and ``with_values`` do.
        """
        events = self._measure(order)
        events = self.watch.guard(events) if self.watch else events
        return with_values(self.metric, events) if self.metric else events

    def _measure(self, order: Measure) -> Generator[LabEvent]:
        if not self._prepared:
            with self.place.lock:
                yield from self._prepare()
        turns: list[Turn] = []
        while True:
            for share in order.plan:
                distrusted = self.candidates.end(share.candidate) or share.candidate in self._distrusted
                clean = not order.incremental or bool(distrusted)
                if not (yield from self.builds.obtain(share.candidate, clean=clean)):
                    return
            turns = turns or self._turns(order)
            if not turns:
                return
            made: dict[tuple[int, int], str] = {}  # candidate and layout → key of what is installed
            try:
                if (yield from self._link(turns, made)):
                    with self.place.lock:
                        yield from self._time(turns, made, together=order.together)
                return
            except BuildChanged as changed:
                if not (yield from self._renew(turns, made, changed)):
                    return
            finally:
                for key in made.values():
                    self.builds.unlink(key)

    def _prepare(self) -> Generator[LabEvent]:
        """End what a killed session has left running on the host, remove what it left, and bring what runs need."""
        host, entry, earlier = self.place.host, self.place.entry, self.earlier
        made = self.made or BuildsMade(self.candidates, earlier.builds)
        yield from made.tidy_once(host.name, tidy(host))
        self.values = placeholders(host, entry, self.builder, earlier.memory_mib, earlier.cores)
        counter = counting.counter(host, self.counted) if self.counted and not self.study else None
        if counter and (random := counter.randomness(host.name)):
            yield Warned(*random)
        placed, by_perf = lua.place(host, self.workload), not counter and perf.counts(host)
        asks = self.workload.asks and not (counter or self.study)
        context = RunContext(
            host, entry, self.workload, placed, by_perf, longest=earlier.longest, counter=counter,
            recognition=Recognition(self.workload) if asks else None,
        )  # fmt: skip
        self.retry = RetryPolicy(host, self.candidates, self.workload.name)
        counts: StudyMaker | None = partial(CountedRunner, events=earlier.events) if counter else None
        times: StudyMaker = partial(Runner, slow=self.slow)
        self.runner = (self.study or counts or times)(context, self.retry.succeeded)
        self._context = context
        sites = [
            BuildSite(
                place, self.builder, self.variant, self.candidates, made,
                layouts=self.seeds is not None, named=self.made is not None and place.host.name != host.name,
                training=self.training,
            )
            for place in self.build_places or (self.place,)
        ]  # fmt: skip
        self.builds = CandidateBuilds(sites, host, self.candidates, made)
        self.data = DatasetKeeper(host, self.workload, earlier.datasets)
        self._busiest, self._prepared = earlier.busiest, True

    @cached_property
    def rounds(self) -> Rounds:
        """What measures two at the same time."""
        context, threads = self._context, max(self.workload.threads, round(self._busiest))  # as runs in turns have used
        allowed = ask(context.host, ALLOWED) or "0"
        entry = shared_cores(context.entry, allowed, threads, server=self.builder.server is not None)
        return Rounds(replace(context, entry=entry), self.retry.succeeded)

    def _renew(
        self, turns: Sequence[Turn], made: Mapping[tuple[int, int], str], changed: BuildChanged
    ) -> Generator[LabEvent, None, bool]:
        """Have a build, or a layout of it, made again; false where that was of no use: then what changed it is its failure."""
        built = self.builds.made.built
        keys = ((built[turn.candidate].facts.key, made.get((turn.candidate, turn.layout))) for turn in turns)
        turn = next(turn for turn, known in zip(turns, keys, strict=True) if changed.key in known)
        if not self.retry.changed(changed.key):
            cause, log = changed.__context__, built[turn.candidate].facts.log
            failure = cause if isinstance(cause, RunFailed) else RunFailed(str(changed), stage="run", log=log)
            yield from self._failed(turn, failure, time.monotonic())
            return False
        why, text = "each time that it changes its build costs a build", f"{changed}: it is made again"
        advice = f"Let what is measured write elsewhere, as below {{data}}: {why}."
        yield Warned(f"{self.candidates.name(turn.candidate)}: {text}", advice)
        self.builds.renew(changed)
        return True

    def _load(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Have the data of a candidate loaded; false when it is skipped."""
        began = time.monotonic()
        while self.candidates.commits[candidate] not in self.data.keys:
            try:
                yield from self.data.load(self._system(candidate))
            except JobLost as lost:
                yield (event := self.retry.lost(candidate, lost, "prepare", began))
                if not isinstance(event, Warned):
                    return False
            except RunFailed as failure:
                yield self._distrust(candidate, failure) or self.retry.failed(candidate, failure, began)
                return False
        return True

    def _distrust(self, candidate: int, failure: BuildFailed | RunFailed) -> Warned | None:
        """A warning where it is an incremental build that fails: when its commit is ordered again it is built in an empty folder."""
        if not self.builds.made.built[candidate].facts.incremental:
            return None
        self._distrusted.add(candidate)
        text = f"the incremental build of {self.candidates.name(candidate)} fails: {failure}"
        return Warned(text, "It is built in an empty folder.")

    def _turns(self, order: Measure) -> list[Turn]:
        """The runs of a measurement in their order. Successive runs of one build in one layout share a visit of its server.

        Of rounds one turn of each build follows the other. Both are in the same layout: what did not change from one build to
        the other is then in the same place.
        """
        seeds, commits = self.seeds if order.fresh else None, self.candidates.commits
        candidates, sequence = [share.candidate for share in order.plan], interleave(order.plan)
        layouts_of = {each: seeds.following(commits[each]) if seeds else repeat(0) for each in candidates}
        if order.together:
            of = order.plan[0].runs
            layouts = islice(count(max(map(next, layouts_of.values())), seeds.step), of) if seeds else (0,)
            runs, rounds = 1 if seeds else of, enumerate(layouts, 1)
            return [Turn(each, first, runs, of, order.purpose, layout=x) for first, x in rounds for each in candidates]
        turns: list[Turn] = []
        for (candidate, layout), neighbours in groupby((each, next(layouts_of[each])) for each in sequence):
            runs, first = len(list(neighbours)), sum(turn.runs for turn in turns) + 1
            turns.append(Turn(candidate, first, runs, len(sequence), order.purpose, layout=layout))
        return turns

    def _link(self, turns: Sequence[Turn], made: dict[tuple[int, int], str]) -> Generator[LabEvent, None, bool]:
        """Link builds again for turns in layouts, before any is timed; true when all are linked. ``made`` gets their keys."""
        began = time.monotonic()
        wanted = [turn for turn in turns if turn.layout and turn.left]
        for done, turn in enumerate(wanted):
            yield BuildProgress(turn.candidate, done, len(wanted), LINK)
            try:
                made[turn.candidate, turn.layout] = self.builds.link(turn.candidate, turn.layout)
            except BuildFailed as failure:
                yield from self._failed(turn, failure, began)
                return False
            except ConnectionLost as lost:
                yield self.builds.give_up(turn.candidate, lost)
                return False
        host = self.place.host
        if made:
            build_store.note(host, [build_store.folder(host, key) for key in made.values()])
        return True

    def _failed(self, turn: Turn, failure: BuildFailed | RunFailed, began: float) -> Iterator[LabEvent]:
        """A build could not be measured. If it failed in a randomized layout only, it is not skipped: layouts are given up. Nor is
        the commit of an incremental build.
        """
        host, built = self.place.host, self.builds.made.built[turn.candidate]
        if told := self._distrust(turn.candidate, failure):
            yield told
            return
        if not (self.seeds and turn.layout):
            prefix = built.prefix or build_store.prefix(host, built.facts.key)
            failure.advice += not_started(host, prefix, self.workload, self.builder.started, str(failure))
            yield self.retry.failed(turn.candidate, failure, began)
            return
        reason = str(failure) if isinstance(failure, BuildFailed) else f"in layout {turn.layout}, {failure}"
        facts = replace(built.facts, reused=True, seconds=0.0, linker="", fixed=reason)
        self.builds.made.built[turn.candidate] = replace(built, facts=facts)
        name = self.candidates.name(turn.candidate)
        advice = "The hunt goes on with the usual layout; `--no-layouts` does so from the beginning."
        yield Warned(f"{name} cannot be measured with its functions in another order: {reason}", advice)
        yield BuildFinished(turn.candidate, facts, None)

    def _time(
        self, turns: Sequence[Turn], made: Mapping[tuple[int, int], str], *, together: bool
    ) -> Generator[LabEvent]:
        """The runs of a measurement, everything built; ``made`` has the keys of builds in layouts."""
        if not self.builds.alone:  # builds of earlier sessions may run there
            end_all(self.place.host)
            self.builds.alone = True
        for candidate in sorted({turn.candidate for turn in turns}):
            if not (yield from self._load(candidate)):
                return
        for group in zip(turns[::2], turns[1::2], strict=True) if together else zip(turns, strict=True):
            if not (yield from self._run(group, [made.get((turn.candidate, turn.layout), "") for turn in group])):
                return

    def _run(self, turns: Sequence[Turn], made: Sequence[str]) -> Generator[LabEvent, None, bool]:
        """Successive runs of a candidate, or rounds of two at the same time; true when all ended well.

        ``made`` has the key of the layout in which each is linked again, "" where it is not. A run that was stopped as too slow
        has ended well; but in the search, one is enough to decide again. A candidate that fails in a round is run alone: if it
        does not fail then, builds are measured in turns from here on.
        """
        began, first = time.monotonic(), turns[0]
        rounds = self.rounds if len(turns) > 1 else None
        what = rounds or self.runner
        while first.left:
            for turn in turns:
                if not (yield from self._load(turn.candidate)):
                    return False
            try:
                sides = [(system, self.data.keys[system.commit]) for system in self._systems(turns, made)]
                for event in rounds.visit(sides, turns) if rounds else self.runner.visit(*sides[0], first):
                    if isinstance(event, RunFinished):
                        self._busiest = self._busiest if rounds else max(self._busiest, busiest([event.facts]))
                        if self.seeds:
                            self.seeds.take(event.facts)
                    yield event
            except TurnsAdvised as advised:
                remove_visit(self.place.host)
                yield _turns_advised(str(advised))
                return False
            except JobLost as lost:
                if first.left:  # else its server has done its work, too
                    if rounds:
                        rounds.failed += 1
                    if rounds and rounds.failed >= TRIES:
                        self.retry.succeeded()
                        why = f"runs were killed in {TRIES} rounds in a row, perhaps for taking all memory"
                        yield _turns_advised(why)
                        return False
                    yield (event := self.retry.lost(turns[what.at].candidate, lost, "run", began))
                    if not isinstance(event, Warned):
                        return False
            except DataDamaged as damaged:
                yield self.data.damaged(sides[what.at][1], damaged)
            except RunFailed as failure:
                at = what.at
                turn, name = turns[at], self.candidates.name(turns[at].candidate)
                if not first.left:  # how a server ends does not change what it did before
                    yield Warned(f"{name}: {failure}", "Its runs had ended well, and count.")
                elif not self.data.refuse(*sides[at], failure):
                    self._system(turn.candidate, made[at], beside=at == 1)  # raises where the build has changed
                    if not rounds:
                        yield from self._failed(turn, failure, began)
                    elif (yield from self._run([replace(turn, first=1, runs=1, total=1, left=1)], [made[at]])):
                        yield _turns_advised(f"{name} fails beside another build only: {failure}")
                    return False
            if first.stopped and first.purpose is Purpose.SEARCH:
                return False
        return True

    def _systems(self, turns: Sequence[Turn], made: Sequence[str]) -> Iterator[Installation]:
        """What is measured, each in the layout of its turn. Raises TurnsAdvised where the second of two has no place."""
        for turn, key in zip(turns, made, strict=True):
            beside = turn is not turns[0]
            try:
                yield replace(self._system(turn.candidate, key, beside=beside), layout=turn.layout)
            except (BuildChanged, ConnectionLost):
                raise
            except EnvironmentFailure as trouble:
                if not beside:
                    raise
                raise TurnsAdvised(f"there is no second place for a build: {trouble}") from trouble

    def _system(self, candidate: int, made: str = "", *, beside: bool = False) -> Installation:
        """A built candidate, or its layout with the key ``made``, at the path where every build is measured; or ``beside`` it.

        A server that may not run as root keeps the place where it is installed elsewhere: it may lack the right to read
        the folders above ours. Raises BuildChanged where the build is not as it was made.
        """
        built = self.builds.made.built[candidate]
        host = self.place.host
        stays = built.prefix if built.prefix and owner(host, built.builder.server) else None
        put = build_store.put_beside if beside else build_store.put_in_place
        prefix = stays or put(host, self.builder.work_name, made or built.facts.key, built.prefix)
        of_build = {"commit": self.candidates.sha(candidate), "prefix": str(prefix), "version": built.version}
        commit, builder = self.candidates.commits[candidate], self.config.applied(built.builder)
        return Installation(commit, built.facts.key, prefix, builder, {**self.values, **of_build})


def _turns_advised(why: str) -> PairingChosen:
    return PairingChosen(together=False, why=f"Builds run interleaved: {why}.")
