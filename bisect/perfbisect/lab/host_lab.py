"""Makes the builds that a work order needs on one host, times the runs of the work order, and reports events."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count, groupby, islice, repeat

from perfbisect.core.domain.events import BuildFinished, BuildProgress, LabEvent, PairingChosen, RunFinished, Warned
from perfbisect.core.domain.facts import most_cores_used
from perfbisect.core.domain.orders import Measure, Purpose, interleave
from perfbisect.errors import (
    BuildFailed,
    BuildFilesChanged,
    ConnectionLost,
    DatasetDamaged,
    EnvironmentFailure,
    JobLost,
    RunFailed,
)
from perfbisect.host.facts import read_fact
from perfbisect.lab.building import build_store
from perfbisect.lab.building.candidates import BuildRegistry, Candidates, LabHost
from perfbisect.lab.building.commit_build import end_running_builds
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.building.log_parser import LINK
from perfbisect.lab.builds import BuildFetcher, BuildSite
from perfbisect.lab.host_watch import HostWatch, WorkRetryPolicy, require_metric_values
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.rounds import ALLOWED, TRIES, PairedRounds, PairingImpossible, with_cores_for_both_builds
from perfbisect.lab.measure.studies import CountingStudy
from perfbisect.lab.measure.visit import RunContext, SlowRuns, Study, StudyMaker, TimingStudy, Turn
from perfbisect.lab.servers import Installation, data_owner_id, host_placeholders
from perfbisect.lab.upkeep import tidy_after_killed_sessions
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.command import Recognition, not_started_advice
from perfbisect.lab.workload.dataset import DatasetKeeper, remove_visit
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values
from perfbisect.recipes.requested import ServerConfig
from perfbisect.recipes.workload import Workload


@dataclass(frozen=True, slots=True)
class EarlierAttempts:
    """Facts of a host from earlier attempts (processes) of a hunt, which a later attempt uses again. For a fact that is
    0, the later attempt uses the present value of the host."""

    builds: Mapping[str, str] = field(default_factory=dict)  # commit → key of its build
    datasets: Mapping[str, str] = field(default_factory=dict)  # commit → key of its data
    events: int = 0  # length of counted runs
    longest: float = 0.0  # seconds of the longest run
    busiest: float = 0.0  # the most cores that an interleaved run has used
    memory_mib: int = 0
    cores: int = 0


@dataclass
class HostLab:
    """Measures candidates on one host, in interleaved or paired runs. A HostLab does nothing on the host before the
    first measurement.

    The ``variant`` "" means the variant of the recipe. ``build_places`` are the hosts that build; if it is empty, the
    measured host builds. If several HostLabs share builds, ``made`` contains the shared builds, and the events of
    builds on another host name this host. If only instructions are measured, ``counted`` is the name of the method that
    counts them exactly. If the runs are not timed, ``study`` makes the object that examines the runs."""

    lab_host: LabHost
    builder: Builder
    variant: str
    workload: Workload
    candidates: Candidates
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)
    build_places: tuple[LabHost, ...] = ()
    slow: SlowRuns = field(default_factory=SlowRuns)
    counted: str = ""
    seeds: LayoutSeeds | None = None  # seeds of randomized layouts; None if builds are not linked again
    study: StudyMaker | None = None
    made: BuildRegistry | None = None
    training: tuple[Workload, ...] = ()  # to train builds that are optimised with a profile
    config: ServerConfig = field(default_factory=ServerConfig)  # addition to the recipe's configuration of the server
    watch: HostWatch | None = None  # of the host, if labs share it; None: the caller watches the host
    metric: str = ""  # each run must have a value of this metric
    builds: BuildFetcher = field(init=False)  # this field and the following ones are set once the host is prepared
    data: DatasetKeeper = field(init=False)
    runner: Study = field(init=False)
    retry: WorkRetryPolicy = field(init=False)
    values: Values = field(init=False)  # placeholders that all candidates share
    _context: RunContext = field(init=False)
    _prepared: bool = field(default=False, init=False)
    _distrusted: set[int] = field(default_factory=set, init=False)  # candidates whose incremental build has failed
    _busiest: float = field(init=False)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build the missing builds of a work order, then time its runs, interleaved or paired, and in randomized
        layouts if ``order`` requests such layouts.

        The measurement ends early if a candidate fails, if its binary equals the binary of another candidate, or if a
        run of the search is stopped as too slow; the search then makes a new decision. Raises EnvironmentFailure if the
        machine cannot build or measure, or if no candidate can be measured; also raises the errors of
        ``HostWatch.guard`` and ``require_metric_values``."""
        events = self._measure(order)
        events = self.watch.guard(events) if self.watch else events
        return require_metric_values(self.metric, events) if self.metric else events

    def _measure(self, order: Measure) -> Generator[LabEvent]:
        if not self._prepared:
            with self.lab_host.lock:
                yield from self._prepare_host()
        turns: list[Turn] = []
        while True:
            for share in order.plan:
                distrusted = self.candidates.end_name(share.candidate) or share.candidate in self._distrusted
                clean = not order.incremental or bool(distrusted)
                if not (yield from self.builds.build_and_copy(share.candidate, clean=clean)):
                    return
            turns = turns or self._turns(order)
            if not turns:
                return
            layout_keys: dict[tuple[int, int], str] = {}  # (candidate, layout) → key of the layout
            try:
                if (yield from self._link(turns, layout_keys)):
                    with self.lab_host.lock:
                        yield from self._time_runs(turns, layout_keys, together=order.together)
                return
            except BuildFilesChanged as changed:
                if not (yield from self._rebuild_once(turns, layout_keys, changed)):
                    return
            finally:
                for key in layout_keys.values():
                    self.builds.remove_layout(key)

    def _prepare_host(self) -> Generator[LabEvent]:
        """End the processes that a killed session left on the host, remove the files of the killed session, and copy
        the files that runs need to the host."""
        host, entry, earlier = self.lab_host.host, self.lab_host.entry, self.earlier
        builds_made = self.made or BuildRegistry(self.candidates, earlier.builds)
        yield from builds_made.tidy_host_once(host.name, tidy_after_killed_sessions(host))
        self.values = host_placeholders(host, entry, self.builder, earlier.memory_mib, earlier.cores)
        counter = counting.make_counter(host, self.counted) if self.counted and not self.study else None
        if counter and (random := counter.randomness_warning(host.name)):
            yield Warned(*random)
        placed, by_perf = lua.place_scripts(host, self.workload), not counter and perf.can_count(host)
        asks = self.workload.asks and not (counter or self.study)
        context = RunContext(
            host, entry, self.workload, placed, by_perf, longest_run_seconds=earlier.longest, counter=counter,
            recognition=Recognition(self.workload) if asks else None,
        )  # fmt: skip
        self.retry = WorkRetryPolicy(host, self.candidates, self.workload.name)
        counts: StudyMaker | None = partial(CountingStudy, events=earlier.events) if counter else None
        times: StudyMaker = partial(TimingStudy, slow=self.slow)
        self.runner = (self.study or counts or times)(context, self.retry.note_success)
        self._context = context
        sites = [
            BuildSite(
                lab_host, self.builder, self.variant, self.candidates, builds_made,
                layouts=self.seeds is not None, names_host=self.made is not None and lab_host.host.name != host.name,
                training=self.training,
            )
            for lab_host in self.build_places or (self.lab_host,)
        ]  # fmt: skip
        self.builds = BuildFetcher(sites, host, self.candidates, builds_made)
        self.data = DatasetKeeper(host, self.workload, earlier.datasets)
        self._busiest, self._prepared = earlier.busiest, True

    @cached_property
    def paired_rounds(self) -> PairedRounds:
        """The rounds of paired runs."""
        context, threads = (
            self._context,
            max(self.workload.threads, round(self._busiest)),
        )  # as many cores as interleaved runs used
        allowed = read_fact(context.host, ALLOWED) or "0"
        entry = with_cores_for_both_builds(context.entry, allowed, threads, server=self.builder.server is not None)
        return PairedRounds(replace(context, entry=entry), self.retry.note_success)

    def _rebuild_once(
        self, turns: Sequence[Turn], layout_keys: Mapping[tuple[int, int], str], changed: BuildFilesChanged
    ) -> Generator[LabEvent, None, bool]:
        """Make a changed build or layout again; returns false if the same build or layout has changed twice, which
        counts as a failure of the build.
        """
        built = self.builds.made.built
        keys = ((built[turn.candidate].facts.key, layout_keys.get((turn.candidate, turn.layout))) for turn in turns)
        turn = next(turn for turn, keys_of_turn in zip(turns, keys, strict=True) if changed.key in keys_of_turn)
        if not self.retry.may_remake(changed.key):
            cause, log = changed.__context__, built[turn.candidate].facts.log
            failure = cause if isinstance(cause, RunFailed) else RunFailed(str(changed), stage="run", log=log)
            yield from self._report_failure(turn, failure, time.monotonic())
            return False
        why, text = "each change of its own build folder costs a build", f"{changed}; the build is made again"
        advice = f"Change the workload so that it writes below {{data}}: {why}."
        yield Warned(f"{self.candidates.display_name(turn.candidate)}: {text}", advice)
        self.builds.remove_changed_build(changed)
        return True

    def _load_data(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Load the data for a candidate; returns false if the candidate is skipped."""
        began = time.monotonic()
        while self.candidates.commits[candidate] not in self.data.keys:
            try:
                yield from self.data.ensure_loaded(self._system(candidate))
            except JobLost as lost:
                yield (event := self.retry.lost_work_event(candidate, lost, "prepare", began))
                if not isinstance(event, Warned):
                    return False
            except RunFailed as failure:
                yield self._plan_clean_build(candidate, failure) or self.retry.skip_event(candidate, failure, began)
                return False
        return True

    def _plan_clean_build(self, candidate: int, failure: BuildFailed | RunFailed) -> Warned | None:
        """If a failed build is incremental, plan a clean build of its commit, and return a warning; otherwise None."""
        if not self.builds.made.built[candidate].facts.incremental:
            return None
        self._distrusted.add(candidate)
        text = f"the incremental build of {self.candidates.display_name(candidate)} fails: {failure}"
        return Warned(text, "The commit gets a clean build instead.")

    def _turns(self, order: Measure) -> list[Turn]:
        """The runs of a work order, in order of time. Successive runs of one build in one layout share one visit (one
        start of the server).

        In paired rounds, the runs of the two builds alternate. Both builds of a round have the same layout, so that
        functions that did not change have the same addresses.
        """
        seeds, commits = self.seeds if order.fresh else None, self.candidates.commits
        candidates, sequence = [share.candidate for share in order.plan], interleave(order.plan)
        layouts_of = {
            candidate: seeds.next_seeds(commits[candidate]) if seeds else repeat(0) for candidate in candidates
        }
        if order.together:
            of = order.plan[0].runs
            layouts = islice(count(max(map(next, layouts_of.values())), seeds.step), of) if seeds else (0,)
            runs, rounds = 1 if seeds else of, enumerate(layouts, 1)
            return [
                Turn(candidate, first, runs, of, order.purpose, layout=x)
                for first, x in rounds
                for candidate in candidates
            ]
        turns: list[Turn] = []
        for (candidate, layout), neighbours in groupby(
            (candidate_of_run, next(layouts_of[candidate_of_run])) for candidate_of_run in sequence
        ):
            runs, first = len(list(neighbours)), sum(turn.runs for turn in turns) + 1
            turns.append(Turn(candidate, first, runs, len(sequence), order.purpose, layout=layout))
        return turns

    def _link(self, turns: Sequence[Turn], layout_keys: dict[tuple[int, int], str]) -> Generator[LabEvent, None, bool]:
        """Link builds in the layouts of all turns; adds keys to ``layout_keys``. Returns whether all are linked."""
        began = time.monotonic()
        unlinked = [turn for turn in turns if turn.layout and turn.runs_left]
        for done, turn in enumerate(unlinked):
            yield BuildProgress(turn.candidate, done, len(unlinked), LINK)
            try:
                layout_keys[turn.candidate, turn.layout] = self.builds.relink(turn.candidate, turn.layout)
            except BuildFailed as failure:
                yield from self._report_failure(turn, failure, began)
                return False
            except ConnectionLost as lost:
                yield self.builds.forget_lost_build(turn.candidate, lost)
                return False
        host = self.lab_host.host
        if layout_keys:
            build_store.record_file_times(host, [build_store.build_folder(host, key) for key in layout_keys.values()])
        return True

    def _report_failure(self, turn: Turn, failure: BuildFailed | RunFailed, began: float) -> Iterator[LabEvent]:
        """Report a build that could not be measured. The candidate is skipped, with two exceptions. After a failure in
        a randomized layout, the hunt uses no more randomized layouts. After a failure of an incremental build, a clean
        build replaces this build.
        """
        host, built = self.lab_host.host, self.builds.made.built[turn.candidate]
        if warned := self._plan_clean_build(turn.candidate, failure):
            yield warned
            return
        if not (self.seeds and turn.layout):
            prefix = built.prefix or build_store.prefix_folder(host, built.facts.key)
            failure.advice += not_started_advice(host, prefix, self.workload, self.builder.started, str(failure))
            yield self.retry.skip_event(turn.candidate, failure, began)
            return
        reason = str(failure) if isinstance(failure, BuildFailed) else f"in layout {turn.layout}, {failure}"
        facts = replace(built.facts, reused=True, seconds=0.0, linker="", fixed=reason)
        self.builds.made.built[turn.candidate] = replace(built, facts=facts)
        name = self.candidates.display_name(turn.candidate)
        advice = "The hunt continues with the usual layout. `--no-layouts` switches other layouts off."
        yield Warned(f"{name} cannot be measured in a randomized layout: {reason}", advice)
        yield BuildFinished(turn.candidate, facts, None)

    def _time_runs(
        self, turns: Sequence[Turn], layout_keys: Mapping[tuple[int, int], str], *, together: bool
    ) -> Generator[LabEvent]:
        """Time the runs of a work order after all its builds were made. ``layout_keys`` has the keys of the linked
        layouts.
        """
        if not self.builds.alone:  # builds of earlier sessions may still run
            end_running_builds(self.lab_host.host)
            self.builds.alone = True
        for candidate in sorted({turn.candidate for turn in turns}):
            if not (yield from self._load_data(candidate)):
                return
        for group in zip(turns[::2], turns[1::2], strict=True) if together else zip(turns, strict=True):
            run_keys = [layout_keys.get((turn.candidate, turn.layout), "") for turn in group]
            if not (yield from self._run(group, run_keys)):
                return

    def _run(self, turns: Sequence[Turn], layout_keys: Sequence[str]) -> Generator[LabEvent, None, bool]:
        """Time successive runs of a candidate, or rounds of paired runs; returns whether all runs ended well.

        ``layout_keys`` has the key of the layout of each turn; "" is the usual layout. A run that was stopped as too
        slow counts as successful; one stopped run is enough for the next decision of the search. If a candidate fails
        in a paired run, the candidate is run alone; if this run succeeds, all later runs are interleaved.
        """
        began, first = time.monotonic(), turns[0]
        rounds = self.paired_rounds if len(turns) > 1 else None
        runner = rounds or self.runner
        while first.runs_left:
            for turn in turns:
                if not (yield from self._load_data(turn.candidate)):
                    return False
            try:
                builds = self._builds_in_layouts(turns, layout_keys)
                sides = [(system, self.data.keys[system.commit]) for system in builds]
                for event in rounds.visit_both(sides, turns) if rounds else self.runner.run_turn(*sides[0], first):
                    if isinstance(event, RunFinished):
                        self._busiest = self._busiest if rounds else max(self._busiest, most_cores_used([event.facts]))
                        if self.seeds:
                            self.seeds.note_used_seed(event.facts)
                    yield event
            except PairingImpossible as advised:
                remove_visit(self.lab_host.host)
                yield _turns_advised(str(advised))
                return False
            except JobLost as lost:
                if first.runs_left:  # a server is not needed after its last run
                    if rounds:
                        rounds.failed += 1
                    if rounds and rounds.failed >= TRIES:
                        self.retry.note_success()
                        why = f"runs were killed in {TRIES} successive rounds, perhaps because memory was full"
                        yield _turns_advised(why)
                        return False
                    yield (event := self.retry.lost_work_event(turns[runner.at].candidate, lost, "run", began))
                    if not isinstance(event, Warned):
                        return False
            except DatasetDamaged as damaged:
                yield self.data.remove_damaged(sides[runner.at][1], damaged)
            except RunFailed as failure:
                at = runner.at
                turn, name = turns[at], self.candidates.display_name(turns[at].candidate)
                if not first.runs_left:  # all runs succeeded: how the server ended is irrelevant
                    yield Warned(f"{name}: {failure}", "Its runs had succeeded, and are used.")
                elif not self.data.mark_dataset_refused(*sides[at], failure):
                    self._system(turn.candidate, layout_keys[at], is_second=at == 1)  # raises if its files changed
                    if not rounds:
                        yield from self._report_failure(turn, failure, began)
                    elif (
                        yield from self._run([replace(turn, first=1, runs=1, total=1, runs_left=1)], [layout_keys[at]])
                    ):
                        yield _turns_advised(f"{name} fails only while another build runs: {failure}")
                    return False
            if first.stopped and first.purpose is Purpose.SEARCH:
                return False
        return True

    def _builds_in_layouts(self, turns: Sequence[Turn], layout_keys: Sequence[str]) -> Iterator[Installation]:
        """The builds to measure, each in the layout of its turn. Raises PairingImpossible if the host has no second
        path for the second build of a pair.
        """
        for turn, key in zip(turns, layout_keys, strict=True):
            beside = turn is not turns[0]
            try:
                yield replace(self._system(turn.candidate, key, is_second=beside), layout=turn.layout)
            except (BuildFilesChanged, ConnectionLost):
                raise
            except EnvironmentFailure as trouble:
                if not beside:
                    raise
                raise PairingImpossible(f"the host has no place for a second build: {trouble}") from trouble

    def _system(self, candidate: int, layout_key: str = "", *, is_second: bool = False) -> Installation:
        """The build of a candidate, or its layout ``layout_key``, at the path where every build is measured or, if
        ``is_second`` is true, at the path of the second build of a pair.

        A server that may not run as root stays in the folder where it was installed, outside of the root folder,
        because its user may lack the right to read the folders above the root folder. Raises BuildFilesChanged if
        files of the build have changed since it was made.
        """
        built = self.builds.made.built[candidate]
        host = self.lab_host.host
        stays = built.prefix if built.prefix and data_owner_id(host, built.builder.server) else None
        put = build_store.symlink_build_copy if is_second else build_store.symlink_build
        prefix = stays or put(host, self.builder.work_name, layout_key or built.facts.key, built.prefix)
        of_build = {"commit": self.candidates.sha(candidate), "prefix": str(prefix), "version": built.version}
        commit, builder = self.candidates.commits[candidate], self.config.applied_to(built.builder)
        return Installation(commit, built.facts.key, prefix, builder, {**self.values, **of_build})


def _turns_advised(why: str) -> PairingChosen:
    return PairingChosen(together=False, why=f"Builds run interleaved: {why}.")
