"""A workload that is a command: how it is run and timed, and a parser of its output."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from perfbisect.errors import ClockSet
from perfbisect.lab.server.installation import System
from perfbisect.lab.server.service import Service
from perfbisect.lab.upload import files, recipe
from perfbisect.lab.workload import fio, lua
from perfbisect.lab.workload.result import SECONDS, TIMED_OUT, Outcome, ProcessResult, killed, not_recorded
from perfbisect.masking import masked
from perfbisect.recipes.builder import SIZE_PLACEHOLDERS, Builder
from perfbisect.recipes.output_pattern import find_number
from perfbisect.recipes.placeholders import Values, fill
from perfbisect.recipes.workload import Workload

LONGEST_LINE = 500  # characters of it, in an error
MOST = (1 << 63) - 1  # operations: the largest number that the history can keep
CLOCK = "clock"  # the file below the visit's folder with begin, status and end

_CLOCK = re.compile(rf"{SECONDS} ([0-9]{{1,3}}) {SECONDS}\s*")

# Ends with 0, so that the status of the job is not the command's: its own 124 is not that of the time limit. Only signals
# that may come from outside are passed on.
_TIMED = """\
clock=$1; shift
began=$(date +%s.%N)
"$@"
status=$?
printf '%s %s %s\\n' "$began" "$status" "$(date +%s.%N)" >"$clock"
case $status in 129|130|137|143) exit "$status";; esac
"""


def values(
    system: System, workload: Workload, placed: PurePosixPath, folder: PurePosixPath, service: Service | None
) -> Values:
    """All placeholders of its commands; ``placed`` is where its files are, ``folder`` is that of the visit."""
    of_system: Values = service.values if service else {**system.values, "data": str(folder / "data")}
    own: Values = {"threads": workload.threads, "time": f"{workload.time:g}", "warmup": f"{workload.warmup:g}"}
    return {**of_system, **own, **_args(workload), "suite": str(placed / lua.SUITE)}


def prepare_inputs(builder: Builder, workload: Workload, filled: Values) -> list[str]:
    """Everything that can change what its commands prepare, but for the build; ``filled`` are placeholders of the host.

    What they do not use leaves no trace.
    """
    commands = repr(workload.prepare_commands)
    own = {"threads": workload.threads, "time": workload.time, "warmup": workload.warmup, **_args(workload)}
    used = {key: value for key, value in own.items() if f"{{{key}}}" in commands}
    used |= {word: filled[word] for word in sorted(SIZE_PLACEHOLDERS | {"jobs"}) if f"{{{word}}}" in commands}
    beside = hashlib.sha256(files.archive(lua.to_send(workload))).hexdigest() if "{suite}" in commands else ""
    of_recipe = [hashlib.sha256(recipe.archive(builder)).hexdigest()] if "{recipe}" in commands else []
    return [commands, repr(used), beside, *of_recipe]


def _args(workload: Workload) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in workload.args.items()
    }


def timed(workload: Workload, filled: Values, folder: PurePosixPath, under: Sequence[str] = ()) -> list[str]:
    """The argv of a timed run; ``folder`` is that of the visit, ``under`` is what the command itself is run under."""
    return ["sh", "-c", _TIMED, "timed", str(folder / CLOCK), *under, *fill(workload.command, filled)]


def outcome(ended: ProcessResult, workload: Workload) -> Outcome:
    """The result of a run: the seconds of the whole command, and the number in its output that the workload's pattern finds.

    Raises ValueError, with a sentence, when the command failed, or its output has no such number; RunLost when its times
    are unknown.
    """
    if ended.status in TIMED_OUT:
        raise ValueError(f"it did not end in {ended.limit:.0f} s and was killed")
    if signal := killed(ended.status):
        raise ValueError(signal)
    if ended.status:
        raise ValueError(f"it could not be run: {last(ended.stdout, ended.stderr)}")
    clock = _CLOCK.fullmatch(ended.clock)
    if not clock:
        raise not_recorded()
    status = int(clock[2])
    if status:
        raise ValueError(f"{killed(status) or f'it ended with status {status}'}: {last(ended.stdout, ended.stderr)}")
    began, seconds = float(clock[1]), float(clock[3]) - float(clock[1])
    if seconds <= 0:
        raise ClockSet("the host's clock was set back during a run")
    if workload.format:
        found = fio.read(ended.stdout)
        return Outcome(
            began, seconds, found.operations, found.latency, reported=found.iops, counters={fio.CPU: found.cpu}
        )
    errors = ended.stderr if ended.is_whole else ""  # what counts may be in the part of stdout that is left out
    where = workload.rate or workload.cost
    reported = find_number(where, ended.stdout, errors) if where else None
    operations = round(find_number(workload.operations, ended.stdout, errors)) if workload.operations else 1
    if not operations:
        raise ValueError("it did less than one operation")
    if operations > MOST:
        raise ValueError(f"it printed that it did {operations:.3g} operations, more than can be counted")
    latency: dict[str, float | None] = {"avg": 1000 * seconds / operations}
    latency |= {name: _latency(pattern, ended.stdout, errors) for name, pattern in workload.latencies.items()}
    return Outcome(began, seconds, operations, latency, reported=reported)


def _latency(pattern: str, stdout: str, stderr: str) -> float | None:
    """Milliseconds; None for what is missing, or printed as 0 since it is too short: no reason to lose the run."""
    try:
        return find_number(pattern, stdout, stderr)
    except ValueError:
        return None


def last(*streams: str) -> str:
    """The last line that is not blank of the last stream that has one, its beginning if it is long.

    The prefix of the shell that reports a missing program is left out.
    """
    for text in reversed(streams):
        if stripped := text.rstrip():
            line = masked(stripped[stripped.rfind("\n") + 1 :]).strip()[:LONGEST_LINE]
            return re.sub(r"^timed: (line )?\d+: ", "", line)
    return "it printed nothing"
