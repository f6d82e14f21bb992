"""Parses the output of build tools line by line, to find how far a build has progressed, and why it failed.

Some builds of old commits fail because the compiler is years newer than the source; ``known_errors.toml`` lists
compiler options that prevent such errors. The time to parse a line is at most proportional to the length of the line,
because repetitions in the regular expressions are bounded and begin with a fixed text.

``PhaseStopwatch`` sums the time of a build by phases. A build's job prints the times at which its stages began, by the
clock of the host, so that the durations are right even if a later session reads the output of the job. All other phases
are timed by the clock of this machine.
"""

import re
import shlex
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfbisect.core.domain.facts import KnownError
from perfbisect.core.domain.settings import Flags
from perfbisect.errors import BuildFailed
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab import GeneratorWithResult
from perfbisect.masking import mask_credentials
from perfbisect.recipes.programs import AGAIN, PARTIAL, PROGRAM, SAID

PATCH, RELINK, RECORD, OTHER = "patch", "relink", "record", "other"  # phases that the build script does not have
HEADER = "a standard header that is missing"
_OF_THE_SYSTEM = ("unistd.h", "sys/types.h", "sys/time.h", "strings.h", "time.h")
_ABSENT = re.compile(
    r"\berror: (?:unknown type name |use of undeclared identifier |no (?:member|template|type) named )?"
    r"'(?:std::)?(\w{1,60})'(?: does not name a | has not been declared| was not declared in this scope| undeclared \(first"
    r"| is not a member of 'std'| is not a class template| in namespace 'std'|$|;)"
    r"|\berror: (?:aggregate|variable) 'std::(\w{1,60})[ <]"
)
_NOTE = re.compile(r"\bnote: '[\w:]{1,80}' is defined in header '<([\w./]{1,30})>'")
_OF_C = re.compile(r"^[^:]{0,400}\.c:|\.h:\d{1,9}:\d{1,9}: error: unknown type name |undeclared \(first")


class ErrorPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression for output lines that report a known error, and compiler flags that prevent the error. The
    text that the group of the expression matches replaces {} in the flags.
    """

    pattern: re.Pattern[str]
    known: KnownError


class KnownErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of ``known_errors.toml``."""

    headers: dict[str, tuple[str, re.Pattern[str]]]  # C++ header → (C header, pattern of names that both declare)
    errors: list[ErrorPattern]


@cache
def known_errors() -> KnownErrors:
    """The known errors of builds, read from ``known_errors.toml``."""
    text = Path(__file__).with_name("known_errors.toml").read_bytes()
    return msgspec.toml.decode(text, type=KnownErrors, dec_hook=lambda _, pattern: re.compile(pattern))


class KnownFailure(BuildFailed):
    """Raised if a build failed with a known error, which additional compiler options may prevent."""

    def __init__(self, sentence: str, known: KnownError, *, hint: str, **how: Any) -> None:
        super().__init__(
            sentence, hint=f"The cause is probably {known.name}. Remedy: {known.remedy}. {hint}".strip(), **how
        )
        self.known = known


def known_error(line: str) -> KnownError | None:
    """The known error that a line of output from a compiler, a linker or an interpreter reports; None if the line
    reports no known error.
    """
    tables = known_errors()
    if note := _NOTE.search(line):
        of_c = any(note[1] == c for c, _ in tables.headers.values())
        return _missing(note[1], of_c) if of_c or note[1] in tables.headers else None
    if absent := _ABSENT.search(line):
        symbol, of_c = absent[1] or absent[2], bool(_OF_C.search(line))
        for cxx, (c, symbols) in tables.headers.items():
            if (c != "-" or not of_c) and symbols.fullmatch(symbol):
                return _missing(c if of_c else cxx, of_c)
    for error in tables.errors:
        if match := error.pattern.search(line):
            flags = error.known.flags
            cflags, cxxflags = (text.format(match[1]) for text in (flags.cflags, flags.cxxflags))
            return replace(error.known, flags=replace(error.known.flags, cflags=cflags, cxxflags=cxxflags))
    return None


def _missing(header: str, of_c: bool) -> KnownError:
    # With -std=c99, the system's headers declare few functions unless _DEFAULT_SOURCE is defined.
    text = f"{'-D_DEFAULT_SOURCE ' if of_c and header in _OF_THE_SYSTEM else ''}-include {header}"
    return KnownError(HEADER, Flags(cflags=text) if of_c else Flags(cxxflags=text), by_itself=True)


T = TypeVar("T")

STAGE = "[perfbisect] "  # begins the lines that the build script adds to the output; the stage's name follows
# Begins the last line that the build script prints: the names of all stages with the times of their starts and the end.
TOOK = "took"
_BEGAN = re.compile(r"([a-z]{1,20}) ([0-9]{1,10}\.[0-9]{1,9})(?!\S)")
_NOW = '"$(read -r up _ </proc/uptime && echo "$up")"'
# The stages of a build in their order. The job that builds prints the names of the stages from CONFIGURE to INSTALL.
FETCH, SEND, CHECKOUT, CONFIGURE = "fetch", "send", "checkout", "configure"
COMPILE, INSTALL, TRAIN, LINK, SHARE = "compile", "install", "train", "link", "share"
OUT_OF_MEMORY = "out of memory"  # begins the error of a host without free memory
DISK_FULL = "the disk is full"  # begins the error of a host without free disk space
LONGEST = 500  # most characters of a line that a sentence quotes
REPORTS = 50  # lines with errors that are kept

_NINJA = re.compile(r"^\[([0-9]{1,9})/([0-9]{1,9})\] ")
_PERCENT = re.compile(r"^\[ {0,2}([0-9]{1,3})%\] ")  # progress of make in makefiles by CMake
_COMPILING = re.compile(r"(?:^|\s)-c(?:\s|$)|^ +(?:CC|CXX|AS) +\S")  # a compilation by make: command or short form
_ERROR = re.compile(
    r"\berror:|: undefined reference to|\bcannot find -l|^CMake Error|No rule to make target|command not found"
    r"|^\S*: \*\*\* |: not found$|internal compiler error"
    r"|\bERROR: "  # errors of Meson
    r"|: multiple definition of "
    r"|^\w{1,40}Error: |^(?:\S{0,200}/)?env: "  # exceptions of Python, or env does not find Python
    r"|^error\[E\d+\]: |^npm (?:error|ERR!) code "
    r"|^\S+\.go:\d+:\d+: |^go: (?!downloading |finding |found |added |warning)"
)
_FOLLOWING = "error: variable or field '"  # an error in a function's declaration; the next line names the missing type
_PLACE = re.compile(r"^configure: error: in [`']")  # names the folder; the next line has the reason
_OF_CMAKE = re.compile(r"^CMake Error.*:$")
_OF_CONFIGURE = re.compile(r"^configure: error: .*:$")
_REPORTER = re.compile(r"^(?:configure: error: |\S+:\d+:\d+: ERROR: )")
_MISSING = re.compile(r"\bCould NOT find ([\w.+-]+)[^()]*\(missing: ([^()]*)\)")
# These expressions are written so that their time grows linearly with the length of a line, not with its square.
_MAKE = r"^(?:\S*/)?\w*make(?:\[\d+\])?: \*\*\* \["
_GAVE_UP = re.compile(_MAKE + r".*\] Error \d+")  # make reports a failed command; the reason may be in lines before
_TROUBLES = {
    r"No space left on device|Disk quota exceeded": DISK_FULL,
    rf"Killed signal terminated program|terminated with signal 9\b|{_MAKE}.*\] Killed": OUT_OF_MEMORY,
    r"virtual memory exhausted|[Cc]annot allocate memory": OUT_OF_MEMORY,
    rf"Terminated signal terminated program|terminated with signal 15\b|{_MAKE}.*\] Terminated": "killed by another program",
    r"^ccache: error:": "ccache does not work",
}
_OF_THE_HOST = [(re.compile(pattern), trouble) for pattern, trouble in _TROUBLES.items()]


@dataclass(slots=True)
class BuildLog:
    """The state of a build, as read from its output. ``total`` is the number of steps, 0 while it is unknown."""

    expected: int = 0  # number of steps of an earlier build of the system; 0 if unknown
    stage: str = CONFIGURE
    done: int = 0
    total: int = 0
    steps: int = 0  # number of compilations by plain make, which does not number its steps
    error: str = ""  # the first line that reports an error, and the lines that belong to it
    errors: int = 0  # lines that report an error
    reports: dict[str, None] = field(default_factory=dict)  # the first lines that report an error, in their order
    known: KnownError | None = None  # the first known error, combined with further errors of its class
    unfinished: bool = False  # whether the next lines may belong to ``error``, too
    host_trouble: str = ""  # why the host failed, not the commit
    partial: str = ""  # why only the started programs were built, not all
    # Program → its file in the build, other files with that name.
    programs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)  # stage → seconds, once the job has ended
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=100))

    def read_line(self, line: str) -> bool:
        """Parse a line of output; return whether the progress of the build has changed. The caller must limit the
        length of the line."""
        if line.startswith(STAGE):
            self.stage = line.removeprefix(STAGE).partition(":")[0]
            self.done, self.total = 0, self.expected if self.stage == COMPILE else 0
            self._forget()  # errors of an earlier stage did not stop the build
            return True
        if line.startswith(SAID):
            word, _, text = line.removeprefix(SAID).partition("] ")
            if word == PARTIAL:
                self.partial = self.failure_line()
            elif word == AGAIN:
                self._forget()
            elif word == PROGRAM:
                program, *paths = mask_credentials(text).split("\t")
                self.programs[program] = tuple(path.removeprefix("./") for path in paths)
            elif word == TOOK:
                self.phases = phase_seconds(text)
            return False
        self.tail.append(mask_credentials(line)[:LONGEST])
        self._find_error(line)
        progress = self.done, self.total
        self._count(line)
        return (self.done, self.total) != progress

    def _forget(self) -> None:
        self.error, self.unfinished, self.errors, self.known = "", False, 0, None
        self.reports.clear()
        self.tail.clear()

    def failure_line(self) -> str:
        """The output line that best explains why the build failed."""
        if missing := _MISSING.search(self.error):  # CMake's message for a missing package is long, so it is shortened
            return f"{missing[1]} is missing ({missing[2].strip()})"
        last = next((line.strip() for line in reversed(self.tail) if line.strip()), "the command printed nothing")
        return _REPORTER.sub("", self.error) or last

    def _find_error(self, line: str) -> None:
        for pattern, trouble in _OF_THE_HOST:
            if not self.host_trouble and pattern.search(line):
                self.host_trouble = f"{trouble}: {_masked_and_cut(line)}"
        if self.unfinished:
            self._continue_error(line)
            return
        if is_error := bool(_ERROR.search(line)):
            self.errors += _FOLLOWING not in line
            if len(self.reports) < REPORTS:
                self.reports.setdefault(_masked_and_cut(line))
        if (is_error or "note: '" in line) and (error := known_error(line)):
            if self.known:
                self.known = self.known.combined(error)
            elif self.errors == 1:
                self.known = error
        if is_error and not self.error and not _PLACE.match(line):
            lines = [earlier.strip() for earlier in list(self.tail)[:-1] if earlier.strip()]
            cause = lines[-1] if lines and _GAVE_UP.match(line) else ""
            self.error = f"{cause} | {_masked_and_cut(line)}" if cause else _masked_and_cut(line)
            self.unfinished = bool(_OF_CMAKE.match(line) or _OF_CONFIGURE.match(line))

    def _continue_error(self, line: str) -> None:
        """Add a line to the error message if the line continues it: CMake continues an error message in indented
        paragraphs, and configure prints the reason on the next line.
        """
        of_cmake = self.error.startswith("CMake")
        if not line.strip():
            self.unfinished = self.error.endswith(":") or (of_cmake and not self.error.endswith((".", ")", "!")))
        elif of_cmake and not line.startswith(" "):
            self.unfinished = False
        else:
            self.error = _masked_and_cut(f"{self.error} {line.strip()}")

    def _count(self, line: str) -> None:
        if match := _NINJA.match(line):
            self.done, self.total = int(match[1]), int(match[2])
        elif match := _PERCENT.match(line):
            self.done, self.total = int(match[1]), 100
        elif self.stage == COMPILE and _COMPILING.search(line):
            self.steps += 1
            self.done = self.steps
            self.total = max(self.total, self.done) if self.total else 0


def _masked_and_cut(line: str) -> str:
    line = mask_credentials(line).strip()  # masked before cut: a part of a password would not be recognized
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def phase_seconds(printed_times: str) -> dict[str, float]:
    """The duration of each stage of a build in seconds. ``printed_times`` is the last line that the build script
    printed."""
    began_at, seconds = _BEGAN.findall(printed_times), dict.fromkeys((CONFIGURE, COMPILE, INSTALL), 0.0)
    for (stage, began), (_, ended) in pairwise(began_at):
        if stage in seconds:
            seconds[stage] += max(0.0, float(ended) - float(began))
    return seconds


def build_script(commands: Sequence[tuple[str, Sequence[str]]], note: str = "") -> str:
    """A shell script that runs the commands of a build until a command fails. The script prints the name of each stage
    when the stage begins, and at the end the times at which the stages began.

    The script first prints ``note``. The script sets no environment variables, because the commands would inherit them.
    """
    lines = [f"printf '%s\\n' {shlex.quote(note)}"] if note else []
    lines.append(f"""trap 'printf "\\n%s\\n" "{SAID}{TOOK}] $* end "{_NOW}' EXIT""")
    for stage, command in commands:
        words = shlex.join(command)
        shown = " ".join(words.split())  # printed as one line, because further lines would look like output
        lines += [
            f"printf '%s\\n' {shlex.quote(f'{STAGE}{stage}: {shown}')}",
            f'set -- "$@" {stage} {_NOW}',
            f"{words} || exit",
        ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class BuildStep:
    """The progress within a stage of a build: the number of finished steps, and ``total``, the number of all steps (0
    if unknown).
    """

    stage: str
    done: int = 0
    total: int = 0


def follow_build(host: Host, job: jobs.Job, output: BuildLog) -> Generator[BuildStep, None, int]:
    """Yield the progress of a build's job, which is parsed from the job's output; return the exit status of the job."""
    lines = GeneratorWithResult(jobs.follow_stdout(host, job))
    with closing(lines.work):
        for line in lines:
            if output.read_line(line):
                yield BuildStep(output.stage, output.done, output.total)
    return lines.result


def steps_as_progress(stage: str, work: Generator[tuple[int, int], None, T]) -> Generator[BuildStep, None, T]:
    """Yield each step of the generator ``work`` as a BuildStep of ``stage``; return the result of ``work``."""
    steps = GeneratorWithResult(work)
    for done, total in steps:
        yield BuildStep(stage, done, total)
    return steps.result


@dataclass(frozen=True, slots=True)
class PhaseStopwatch:
    """Sums the seconds of each phase of a build. If a phase is repeated, its times are added."""

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())

    def add(self, phases: Mapping[str, float]) -> None:
        """Add the seconds of each phase in ``phases`` to the sum of this phase."""
        for phase, seconds in phases.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def measure_phase(self, phase: str) -> Iterator[None]:
        """Add the duration of the ``with`` block to a phase. If other phases are measured within the block, their
        durations are subtracted."""
        began, earlier = time.monotonic(), self.total
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - began - (self.total - earlier)})

    def phases(self, elapsed: float) -> dict[str, float]:
        """The seconds of each phase of a build that took ``elapsed`` seconds in all. The seconds that belong to no
        measured phase are in the phase ``OTHER``.
        """
        seconds = self.seconds | {OTHER: elapsed - self.total}
        return {phase: rounded for phase, took in seconds.items() if (rounded := round(took, 3)) > 0}
