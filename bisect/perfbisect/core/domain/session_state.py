"""The state of a session, computed from its events. Plans, views and reports read the state. This module does no I/O.

Tested commits are keyed by hash, because a hunt may first search another range, whose measurements stay valid.
"""

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from perfbisect.core.domain.events import (
    LIVE_ONLY,
    BuildCancelled,
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Commit,
    Counted,
    Decided,
    Event,
    ExplanationEvent,
    MetricChosen,
    PairingChosen,
    Planned,
    Profiled,
    Remedied,
    RunFinished,
    SessionEnded,
    SessionStarted,
    Uncounted,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import (
    LEFT_OUT,
    BuildFacts,
    DropHunt,
    HostFacts,
    RunFacts,
    SkipFacts,
    TrialRun,
    TrialSkip,
    ccache_hit_rate,
)
from perfbisect.core.domain.measured_log import ExcludedRuns, FirstCommitsByBinary, MeasuredEvent, host_or_shared_number
from perfbisect.core.domain.orders import Belief, Measure, Purpose, Step, Verdict, worsening_steps
from perfbisect.core.domain.settings import NO_TRIAL, Pairing, TrialRequest

LEARNED = ("key", "binary", "version", "seconds")  # fields of a TrialBuild that become known when it is built
WORK = BuildStarted, BuildFinished, CandidateSkipped, RunFinished  # each event shows that its host's last work ended
MUTABLE = (
    "tested", "log", "excluded_runs", "explanation_events", "in_flight", "cancelled", "warnings", "binaries", "since", "runs", "skips", "proofs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TestedCommit:
    """A commit that was built, measured or skipped, and the cost of this work."""

    commit: Commit  # without subject and date if no event has announced a build of the commit
    builds: tuple[BuildFacts, ...] = ()  # in order of time, with reused builds
    runs: tuple[RunFacts, ...] = ()
    skip: SkipFacts | None = None  # the latest failure; None if a run succeeded after it
    same_as: str | None = None  # a commit that was built earlier and has the same binary
    failed_seconds: float = 0.0  # spent on builds that failed
    run_seconds: float = 0.0  # seconds of runs, with starts and warm-up

    def with_run(self, run: RunFacts, seconds: float) -> "TestedCommit":
        """A copy with one more run, which took ``seconds`` with the start of the server and the warm-up."""
        took = self.run_seconds + seconds
        return TestedCommit(self.commit, self.builds, (*self.runs, run), None, self.same_as, self.failed_seconds, took)

    @property
    def new_builds(self) -> tuple[BuildFacts, ...]:
        """The builds that were made in this session, without reused builds."""
        return tuple(build for build in self.builds if not build.reused)

    @property
    def has_incremental_build(self) -> bool:
        """Whether the latest build was an incremental build (a build in the folder of an earlier build)."""
        return bool(self.builds) and self.builds[-1].incremental

    @property
    def reused(self) -> bool:
        """Whether the latest build of the commit existed before the session needed the build."""
        return bool(self.builds) and self.builds[-1].reused

    @property
    def is_fetched(self) -> bool:
        """Whether the session copied the commit's build from the store of shared builds, and compiled nothing."""
        return not self.new_builds and any(build.shared for build in self.builds)

    @property
    def build_seconds(self) -> float:
        """The seconds of all builds of the commit, including failed builds and copying of shared builds."""
        return sum(build.seconds for build in self.builds if build.shared or not build.reused) + self.failed_seconds

    @property
    def ccache_hit_rate(self) -> float | None:
        """The fraction of compilations that used ccache's results; None if nothing was compiled."""
        return ccache_hit_rate(self.new_builds)


@dataclass(slots=True, eq=False)
class SessionState:
    """The state after the events of a session so far. ``add`` changes this state; ``after`` returns a new state."""

    id: int = 0  # id of the session in the history
    request: TrialRequest = NO_TRIAL  # request of a trial, with the facts of the trial's builds
    sites: tuple[HostFacts, ...] = ()  # hosts of the latest attempt
    began: float = 0.0  # seconds since the epoch
    state: str = "running"  # state of a trial: "running", "interrupted", "failed" or "done"
    runs: list[TrialRun] = field(default_factory=list)  # runs of a trial
    skips: list[TrialSkip] = field(default_factory=list)
    failure: str = ""  # why the trial could not continue
    origin: str = ""  # owner of an imported session
    hunts: tuple[DropHunt, ...] = ()  # hunts for the drops of a comparison

    started: SessionStarted | None = None  # the latest start
    commits: tuple[str, ...] = ()  # commit of each candidate of the present range, from good to bad
    node: dict[str, int] = field(default_factory=dict)  # commit → candidate
    tested: dict[str, TestedCommit] = field(default_factory=dict)  # commit → its facts, in order of time
    log: list[tuple[float, MeasuredEvent]] = field(default_factory=list)  # (time, event) of observations
    excluded_runs: ExcludedRuns = field(default_factory=ExcludedRuns)
    remedy: tuple[str, ...] = ()  # a sentence that says what was done so that commits build
    chosen: MetricChosen = field(default_factory=lambda: MetricChosen("", ""))  # "": metric not changed
    pairing: PairingChosen | None = None  # how builds are compared, if it was chosen
    warnings: dict[str, str] = field(default_factory=dict)  # text of a warning → advice
    belief: Belief | None = None  # about the present range
    explanation_events: list[ExplanationEvent] = field(default_factory=list)
    in_flight: dict[str, tuple[str, float]] = field(default_factory=dict)  # build host → (commit that it builds, start)
    cancelled: list[float] = field(default_factory=list)  # seconds of each build that was ended before it was finished
    purpose: Purpose | None = None  # purpose of the latest order
    found: tuple[Step, ...] = ()  # changes that are proven so far; the verdict has them, too
    clean: bool = False  # a proof contradicted the search: since then incremental builds do not count
    proofs: set[str] = field(default_factory=set)  # commits that were rebuilt for a proof after an incremental build
    verdict: Verdict | None = None  # verdict of the present attempt
    named: dict[str, Commit] = field(default_factory=dict)  # hash → suspect that was never built
    elapsed: float = 0.0  # seconds of all attempts
    binaries: FirstCommitsByBinary = field(default_factory=FirstCommitsByBinary)
    last: float | None = None  # time of the latest event
    build_count: int = 0  # builds that were not reused
    run_count: int = 0  # all runs, with those that no longer count
    cost: float = 0.0  # seconds of the latest run with its start and warm-up; 0 for the second run of a pair
    since: dict[str, float] = field(default_factory=dict)  # host → time of its latest work in this attempt

    @classmethod
    def of_trial(
        cls, number: int, request: TrialRequest, host: HostFacts, began: float, state: str = "running", **fields: Any
    ) -> "SessionState":
        """The state of a trial without measurements; ``fields`` are further fields of the state."""
        return cls(number, request, (host,), began, state, **fields)

    @property
    def name(self) -> str:
        """The short name of the session: 12, c3, n4, p5."""
        return f"{self.request.kind[:1] if self.request.works else ''}{self.id}"

    @property
    def host(self) -> HostFacts:
        """The first host."""
        return self.sites[0]

    @property
    def is_paired(self) -> bool:
        """Whether each run is paired with a run of the first build, as the trial has chosen or as requested."""
        return self.pairing.together if self.pairing else self.request.pairing is Pairing.PAIRED

    def after(self, at: float, event: Event) -> "SessionState":
        """The state after adding ``event``, which happened ``at`` seconds since the epoch."""
        if isinstance(event, LIVE_ONLY):
            return self
        following = replace(self, **{name: copy(getattr(self, name)) for name in MUTABLE})
        following.add(at, event)
        return following

    def begin_attempt(self, at: float) -> None:
        """Note that a process begins to work on the session; the time since the last event is not counted."""
        self.last, self.since = at, {}

    def add(self, at: float, event: Event) -> None:
        """Add the next event, which happened ``at`` seconds since the epoch."""
        if isinstance(event, LIVE_ONLY):
            return
        previous = at if self.last is None else self.last
        self.elapsed += max(0.0, at - previous)
        self.last = at
        match event:
            case SessionStarted(request=request):
                self.id, self.sites, self.since = event.session, event.hosts, {}
                if request.works:
                    if not self.runs:  # builds that failed before the first run are tried again
                        self.skips.clear()
                    self.request, self.state, self.failure = self._with_learned_facts(request), "running", ""
                else:
                    self.started, self.verdict = event, None
                    self.renumber_candidates(event.candidates)
            case MetricChosen(metric):
                self.chosen, self.pairing = event, None
                if self.started:
                    self.started = replace(self.started, metric=metric)
            case Remedied():
                self.remedy, self.belief, self.found = (event.reason_sentence,), None, ()
                self._exclude_runs(self.tested)
            case PairingChosen():
                self.pairing = event
            case Warned(text, advice):
                self.warnings[text] = advice
            case Decided(decision):
                if decision.clean and not self.clean:
                    self.clean = True
                    self._exclude_runs({sha for sha, row in self.tested.items() if row.has_incremental_build})
                self.belief = decision.belief
                self.purpose = decision.order.purpose if isinstance(decision.order, Measure) else None
                self.found = decision.found or worsening_steps(decision.order)
                if isinstance(decision.order, Measure) and self.build_hosts and self.started:  # hosts wait for builds
                    self.since[self.started.hosts[decision.order.host].name] = at
            case BuildStarted(commit=commit):
                self.tested[commit.sha] = replace(self.facts_of(commit.sha), commit=commit)
            case BuildFinished(number, build) if self.request.works:
                # Later workloads reuse the build, with 0 seconds: the seconds of the first event are kept.
                seconds = build.seconds or self.request.subjects[number].seconds
                self._add_facts_to_request(number, key=build.key, binary=build.binary, seconds=seconds, trouble="")
                same_as = self.binaries.add_build(self._host_number(event), build)
                self.tested[build.commit] = replace(self.facts_of(build.commit), same_as=same_as)
            case CandidateSkipped(number, skip) if self.request.works:
                if skip.is_build_failure:
                    self._add_facts_to_request(number, trouble=skip.reason)
                else:
                    self.skips.append(TrialSkip(event.workload, number, at, skip))
            case RunFinished(number, run) if self.request.works:
                took = max(at - self.since.get(event.host, previous), run.seconds)
                beside = run.round and self.runs and self.runs[-1].facts.round == run.round
                self.cost, self.run_count = 0.0 if beside else took, self.run_count + 1
                self.runs.append(TrialRun(event.round, event.workload, number, at, took, run))
            case BuildFinished(facts=build):
                row = self.facts_of(build.commit)
                last = row.builds[-1] if row.builds else build
                if last.incremental and not build.incremental and self.purpose is Purpose.CONFIRM:
                    self.proofs.add(build.commit)
                if (last.incremental or build.incremental) and build.binary != last.binary:
                    self._exclude_runs({build.commit})
                    row = self.facts_of(build.commit)
                same_as = self.binaries.add_build(self._host_number(event), build) or row.same_as
                runs = self.excluded_runs.restore_if_same_binary(build, self.log)
                row = replace(row, builds=(*row.builds, build), runs=(*row.runs, *runs), same_as=same_as)
                self._log_measurement(at, event, row)
            case BuildCancelled(seconds=seconds):
                self.cancelled.append(seconds)
            case CandidateSkipped(facts=skip):
                if skip.is_build_failure and self.facts_of(skip.commit).has_incremental_build:  # of another commit
                    self._exclude_runs({skip.commit})
                row = self.facts_of(skip.commit)
                cost = skip.seconds if skip.is_build_failure and not skip.for_another else 0.0
                self._log_measurement(at, event, replace(row, skip=skip, failed_seconds=row.failed_seconds + cost))
            case RunFinished(facts=run):
                row = self.facts_of(run.commit)
                beside = run.round and any(getattr(x.facts, "round", "") == run.round for _, x in self.log[-4:])
                since = self.since.get(event.host, previous)
                self.cost = 0.0 if beside or run.for_another else max(at - since, run.seconds)
                self.run_count += not run.for_another
                self._log_measurement(at, event, row.with_run(run, self.cost))
            case Uncounted(facts=skip):
                self._log_measurement(at, event, self.facts_of(skip.commit))
            case Counted() | Profiled() | Planned() | ChangedFunctions() | Unexplained():
                self.explanation_events.append(event)
            case SessionEnded(verdict):
                self.verdict = verdict
                self.named = self.named | {commit.sha: commit for commit in event.suspects}
                if not verdict:
                    self.state = "done"
        if self.build_hosts or self.in_flight:
            self._update_in_flight(at, event)
        if isinstance(event, WORK):
            self.build_count += isinstance(event, BuildFinished) and not event.facts.reused
            if event.host:
                self.since[event.host] = at

    def _update_in_flight(self, at: float, event: Event) -> None:
        """Update the builds that build hosts are making."""
        match event:
            case BuildStarted(commit=commit, host=host) if host in self.build_hosts:
                self.in_flight[host] = commit.sha, at
            case BuildFinished(host=host) | BuildCancelled(host=host) | CandidateSkipped(host=host):
                self.in_flight.pop(host, None)
            case SessionStarted() | SessionEnded():
                self.in_flight.clear()
            case _:
                pass

    def _add_facts_to_request(self, build_number: int, **facts: Any) -> None:
        """Add facts about a build to the request of the trial."""
        subjects = list(self.request.subjects)
        subjects[build_number] = replace(subjects[build_number], **facts)
        self.request = replace(self.request, subjects=tuple(subjects))

    def _with_learned_facts(self, request: TrialRequest) -> TrialRequest:
        """The request of a new attempt, completed by the facts about builds that earlier attempts have found."""
        subjects = [
            replace(
                new,
                **{name: getattr(new, name) or getattr(old, name) for name in LEARNED},
                trouble=old.trouble if self.runs else "",
            )
            for old, new in zip(self.request.subjects or request.subjects, request.subjects, strict=True)
        ]
        return replace(request, subjects=tuple(subjects))

    def renumber_candidates(self, commits: tuple[str, ...]) -> None:
        """Number the candidates by the range ``commits``. If the range changes, the search's estimates are removed."""
        if self.commits == commits:
            return
        self.commits, self.node = commits, {commit: candidate for candidate, commit in enumerate(commits)}
        self.belief, self.purpose, self.found = None, None, ()
        self._compare_binaries()

    def _compare_binaries(self, commits: Collection[str] = ()) -> None:
        """Determine again which commits have equal binaries; builds of ``commits`` are no longer valid."""
        self.binaries = FirstCommitsByBinary()
        for _, event in self.log:
            if isinstance(event, BuildFinished) and event.facts.commit in self.node:
                same_as = self.binaries.add_build(self._host_number(event), event.facts)
                if (row := self.facts_of(event.facts.commit)).same_as in commits:
                    self.tested[event.facts.commit] = replace(row, same_as=same_as)

    def _exclude_runs(self, commits: Collection[str]) -> None:
        """Exclude the runs of ``commits`` from the search until the commits are built again."""
        self.excluded_runs.exclude(self.log, commits)
        for sha, row in [(sha, self.tested[sha]) for sha in commits]:
            skip = row.skip if row.skip and row.skip.stage == LEFT_OUT else None
            self.tested[sha] = replace(row, runs=(), skip=skip, same_as=None)
        self._compare_binaries(commits)

    def _host_number(self, event: MeasuredEvent) -> int:
        """The number of an event's host in the session; 0 if the session has only one host."""
        numbers = {name: number for number, name in enumerate(self.hosts_if_several)}
        return host_or_shared_number(event.host, numbers, self.build_hosts)

    def _log_measurement(self, at: float, event: MeasuredEvent, row: TestedCommit) -> None:
        """Store an event as an observation for the search, and the new facts ``row`` about the event's commit."""
        self.log.append((at, event))
        self.tested[event.facts.commit] = row

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return self.started.metric if self.started else "qps"

    @property
    def hosts_if_several(self) -> list[str]:
        """The names of the hosts if the session has several hosts; otherwise an empty list."""
        return [facts.name for facts in self.started.hosts] if self.started and self.started.further else []

    @property
    def build_hosts(self) -> tuple[str, ...]:
        """The names of the build hosts (hosts that make builds before runs need the builds)."""
        return self.started.build_hosts if self.started else ()

    def latest_build(self, candidate: int) -> BuildFacts | None:
        """The latest build of a candidate; None if the candidate was not built."""
        return next(reversed(self.facts_of(self.commits[candidate]).builds), None)

    def facts_of(self, sha: str) -> TestedCommit:
        """The facts about a commit; only the hash is known if the commit was not tested and is no suspect."""
        return self.tested.get(sha) or TestedCommit(self.named.get(sha) or Commit(sha))

    def first_with_same_binary(self, sha: str) -> str:
        """The first built commit whose binary equals the binary of the commit ``sha``."""
        return self.facts_of(sha).same_as or sha

    def is_measured(self, sha: str) -> bool:
        """Whether a commit, or another commit with the same binary, was measured."""
        binary = self.first_with_same_binary(sha)
        return any(row.runs and self.first_with_same_binary(tested) == binary for tested, row in self.tested.items())

    def runs_of_equal_binaries(self, *shas: str) -> list[RunFacts]:
        """The runs of the commits ``shas`` and of all commits with the same binaries, in order of time."""
        binaries = {self.first_with_same_binary(sha) for sha in shas}
        rows = (row for sha, row in self.tested.items() if self.first_with_same_binary(sha) in binaries)
        return sorted((run for row in rows for run in row.runs), key=lambda run: run.started)

    def runs_of_step(self, step: Step, *, counted: bool) -> tuple[list[RunFacts], list[RunFacts]]:
        """The runs of a step's parents, and of its candidate: exact counts if ``counted`` is true, else timed runs."""
        parents = (self.commits[parent] for parent in step.parents)
        sides = self.runs_of_equal_binaries(*parents), self.runs_of_equal_binaries(self.commits[step.candidate])
        parent_runs, own_runs = ([run for run in runs if bool(run.counted) is counted] for runs in sides)
        return parent_runs, own_runs


def fold(
    events: Iterable[tuple[float, Event]], attempt_starts: Sequence[float] = (), state: SessionState | None = None
) -> SessionState:
    """The state after a list of events with times; ``attempt_starts`` are the times at which attempts began."""
    state, begins = state or SessionState(), [*attempt_starts]
    for at, event in events:
        while begins and begins[0] <= at:
            state.begin_attempt(begins.pop(0))
        state.add(at, event)
    return state
