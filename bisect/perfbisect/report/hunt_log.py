"""What happened in a hunt, gathered from its log: pure, so the same log always makes the same report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    HuntEnded,
    HuntStarted,
    RunFinished,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import Belief, Verdict
from perfbisect.core.inference.from_log import Logged
from perfbisect.store.history import Entry
from perfbisect.wording.text import printable

Describe = Callable[[str], Commit]  # by full hash


def bare(sha: str) -> Commit:
    """A commit of which nothing but the hash is known."""
    return Commit(sha, "", "", "")


@dataclass(slots=True)
class HuntLog:
    """Everything that a log says, by commit (full hash), in the order in which it happened."""

    started: HuntStarted | None = None  # of the latest session
    logged: list[tuple[float, Logged]] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)
    builds: dict[str, list[BuildFacts]] = field(default_factory=dict)
    skips: dict[str, SkipFacts] = field(default_factory=dict)
    runs: dict[str, list[RunFacts]] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)  # text → advice
    belief: Belief | None = None
    verdict: Verdict | None = None  # None unless the latest session ended with one
    run_seconds: float = 0.0  # warm-up and starts included
    elapsed: float = 0.0  # seconds of all sessions
    describe: Describe = bare  # what else knows of commits

    @classmethod
    def of(cls, entries: Iterable[Entry], sessions: Sequence[float], describe: Describe = bare) -> "HuntLog":
        """Gather a log; ``sessions`` are the times at which processes began to work on the hunt."""
        ledger = cls(describe=describe)
        before, begins = 0.0, [*sessions]
        heard: dict[str, float] = {}  # when each host was last heard of, in this session
        for entry in entries:
            while begins and begins[0] <= entry.at:
                before, heard = begins.pop(0), {}
            ledger.elapsed += max(0.0, entry.at - before)
            if isinstance(entry.event, RunFinished):
                since = heard.get(entry.event.host, before)
                ledger.run_seconds += max(entry.at - since, entry.event.facts.seconds)
            before = entry.at
            if (
                isinstance(entry.event, BuildStarted | BuildFinished | CandidateSkipped | RunFinished)
                and entry.event.host
            ):
                heard[entry.event.host] = entry.at
            ledger.take(entry)
        return ledger

    def take(self, entry: Entry) -> None:
        """Take one entry of the log."""
        match entry.event:
            case HuntStarted() as started:
                self.started, self.verdict = started, None
            case Warned(text, advice):
                self.warnings[printable(text)] = printable(advice)
            case BuildStarted(commit=commit):
                self.commits[commit.sha] = tidy(commit)
            case BuildFinished(facts=build) as event:
                self.builds.setdefault(build.commit, []).append(build)
                self.logged.append((entry.at, event))
            case CandidateSkipped(facts=skip) as event:
                self.skips[skip.commit] = skip
                self.logged.append((entry.at, event))
            case RunFinished(facts=run) as event:
                self.runs.setdefault(run.commit, []).append(run)
                self.logged.append((entry.at, event))
            case Decided(decision):
                self.belief = decision.belief
            case HuntEnded(verdict):
                self.verdict = verdict
            case _:
                pass

    def commit(self, sha: str) -> Commit:
        """A commit as far as it is known; the log itself knows those that were about to be built."""
        if sha not in self.commits:
            self.commits[sha] = tidy(self.describe(sha))
        return self.commits[sha]

    def twins(self, sha: str) -> Iterator[str]:
        """Every commit whose build is the same binary, this one included."""
        binaries = {build.binary for build in self.builds.get(sha, ())}
        yield sha
        for other, builds in self.builds.items():
            if other != sha and any(build.binary in binaries for build in builds):
                yield other

    def twin(self, sha: str) -> str | None:
        """The earliest built commit with the same binary, if that is another one."""
        made = {build.binary: commit for commit, builds in reversed(self.builds.items()) for build in builds}
        first = next((made[build.binary] for build in self.builds.get(sha, ())), sha)
        return None if first == sha else first

    def runs_like(self, *shas: str) -> list[RunFacts]:
        """The runs of these commits and of others with the same binaries, in order of time."""
        same = {twin for sha in shas for twin in self.twins(sha)}
        return sorted((run for sha in same for run in self.runs.get(sha, ())), key=lambda run: run.started)


def tidy(commit: Commit) -> Commit:
    """The commit with texts that are safe to print."""
    return replace(
        commit, date=printable(commit.date), author=printable(commit.author), subject=printable(commit.subject)
    )
