"""What must hold after a hunt, whatever has happened to it; each check returns sentences about what does not."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from history import Kept
from ledger import Ledger
from places import Place
from session import DOCUMENTED, ENDED_BY_US, VERDICTS, Session

from repository import Range

MOST_MEMORY = 256 << 20  # bytes of a controller
DOCUMENTED_NAMES = {  # as in docs/architecture.md
    ".perfbisect", "lock", "git", "recipes", "scripts", "work", "builds", "datasets", "jobs", "logs",
    "ccache", "tmp",
}  # fmt: skip
GRACE = 5.0  # seconds in which the last processes of a connection end


def check(kept: Kept | None, ledger: Ledger, span: Range, sessions: Sequence[Session]) -> list[str]:
    """Everything about the history, the runs and the verdict."""
    if kept is None:
        return ["there is no history"]
    return [*_history(kept), *_runs(kept, ledger, span, sessions), *_verdict(kept, span), *_sessions(kept, sessions)]


def _history(kept: Kept) -> Iterator[str]:
    yield from kept.damage
    if kept.hunts != 1:
        yield f"{kept.hunts} hunts in place of one"
    if kept.count("RunFinished") != len(kept.runs):
        yield f"{kept.count('RunFinished')} runs in the log, {len(kept.runs)} in the table"


def _runs(kept: Kept, ledger: Ledger, span: Range, sessions: Sequence[Session]) -> Iterator[str]:
    """Each run is one real execution, of the right commit, that nothing disturbed; and none is lost or doubled."""
    real = {execution.rate: execution for execution in ledger.ended_runs}
    together = {id_ for pair in ledger.beside for id_ in pair}
    for rate, times in Counter(run.rate for run in kept.runs).items():
        if times > 1:
            yield f"the run with rate {rate} counts {times} times"
    for run in kept.runs:
        execution = real.get(run.rate)
        if execution is None:
            yield f"no execution had the rate {run.rate} of a run"
        elif span.commits[execution.commit] != run.commit:
            yield f"a run of commit {execution.commit} is entered as one of {run.commit}"
        elif execution.id in together:
            yield f"run {execution.id}, which counts, had another execution beside it"
    shown = set().union(*(session.rates() for session in sessions))
    if lost := shown - {run.rate for run in kept.runs}:
        yield f"{len(lost)} runs were shown but are not in the history"
    faults = sum(session.faults for session in sessions)
    if (repeated := len(ledger.ended_runs) - len(kept.runs)) > faults:
        yield f"{repeated} runs had ended and do not count, with {faults} faults"


def _verdict(kept: Kept, span: Range) -> Iterator[str]:
    right = ("NotReproduced", "") if span.culprit is None else ("Found", span.commits[span.culprit])
    if (kept.verdict, kept.culprit) != right:
        yield f"the verdict is {kept.verdict or 'missing'} {kept.culprit}, not {' '.join(right)}"
    if wrong := [
        span.commits.index(commit) for commit in kept.skipped if span.commits.index(commit) not in span.broken
    ]:
        yield f"skipped without a fault of their own: commits {wrong}"


def _sessions(kept: Kept, sessions: Sequence[Session]) -> Iterator[str]:
    for number, session in enumerate(sessions):
        text = "\n".join(session.messages())
        if session.status not in DOCUMENTED | ENDED_BY_US:
            yield f"session {number} ended with status {session.status}: {session.last_words()}"
        if "Traceback" in text or "bug of perfbisect" in text:
            yield f"session {number} printed a traceback: {session.last_words()}"
        if session.status in VERDICTS and not kept.verdict:
            yield f"session {number} ended with status {session.status}, and the history has no verdict"
        if session.memory > MOST_MEMORY:
            yield f"session {number} took {session.memory >> 20} MiB"


def leftovers(place: Place, temporary: Path, sessions: Sequence[Session], *, cut: bool) -> list[str]:
    """What the hunt has left on its host or beside it.

    sshd notices late that the other end of a connection is gone while the link is ``cut``. `kill -9` leaves what the
    controller keeps in TMPDIR. What a killed compiler leaves in the root's folder of temporary files is removed when the
    next hunt begins.
    """
    deadline = time.monotonic() + GRACE
    while alive := [each for each in place.processes() if not (cut and each.name == "sshd")]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found = [f"left running: {process}" for process in alive]
    names = {path.name for path in place.root.iterdir()} if place.root.exists() else set()
    found += [f"left below the root: {name}" for name in sorted(names - DOCUMENTED_NAMES)]
    found += [f"left half done: {path.name}" for path in place.root.glob("builds/*.part")]
    killed = any(session.status in ENDED_BY_US for session in sessions)
    left = [path.name for path in temporary.iterdir() if not (killed and path.name.startswith("perfbisect-"))]
    found += [f"left in TMPDIR: {name}" for name in left]
    verdicts = [session for session in sessions if session.status in VERDICTS]
    if verdicts and not verdicts[-1].faults:  # a session that finds its host busy removes nothing
        found += [f"left in the host's tmp: {path.name}" for path in place.root.glob("tmp/*")]
    return found
