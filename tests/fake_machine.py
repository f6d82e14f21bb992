"""Hosts of tests on which nothing happens: one that answers foreseen commands, and a machine for a whole lab.

``FakeHost("far", {"uname *": "6.1\n", "make *": 2})`` answers by patterns: with what is printed, a status, an error, or a
function of the words and stdin. ``FakeMachine()`` has builds, datasets and jobs as entries of dictionaries.
"""

import base64
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import PurePosixPath

from perfbisect.host.protocol import Command, Host, Result, Streamed
from perfbisect.lab.build.host_git import ALONE, GIT
from perfbisect.lab.build.log_parser import COMPILE, STAGE
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.workload import Workload

STAT = "4711 (sh) S " + " ".join("0" for _ in range(18)) + " 1 0"
RUN_SECONDS = 2.0

BUILDER = Builder(
    name="fake",
    folder="/nowhere",
    summary="",
    driver="command",
    variants={"o2nofp": Variant(cflags="-O2")},
    build=Build(compile=[["make"]], install=[["make", "install"]], artifacts=["bin"]),
)


def workload(**changes: object) -> Workload:
    settings = {"command": ["./bench"], "prepare_commands": [["./load"]], **changes}
    return Workload(
        name="bench", suite="fake", folder="/nowhere", driver="command", summary="", group="command", **settings
    )  # type: ignore[arg-type]


Answer = str | int | BaseException | Callable[[list[str], str], "Answer"]
"""What a command prints; or the status of one that fails; or what it raises; or a function of its words and stdin."""


class FakeHost(Host):
    """``answers`` maps a pattern (as of fnmatch) to an answer; the first that matches counts.

    What is matched are the words of a command, without what keeps the host's environment from it and without git's
    options. Of ``sh -c SCRIPT NAME ARGUMENTS`` these are NAME and ARGUMENTS, where there are any.
    """

    def __init__(self, name: str, answers: Mapping[str, Answer], *, is_local: bool = True) -> None:
        self.name = name
        self.root = PurePosixPath("/", name)
        self.is_local = is_local
        self.answers = dict(answers)

    def execute(self, command: Command) -> Result:
        words, stdin = words_of(command.argv), command.stdin.decode()
        text = " ".join(words)
        for pattern, answer in self.answers.items():
            if fnmatchcase(text, pattern):
                while callable(answer):
                    answer = answer(words, stdin)
                if isinstance(answer, BaseException):
                    raise answer
                status, printed = (answer, "") if isinstance(answer, int) else (0, answer)
                return Result(command.argv, status, printed, "")
        raise AssertionError(f"a command that was not foreseen on host {self.name}: {text}")

    def begin(self, argv: tuple[str, ...], far: socket.socket) -> AbstractContextManager[Streamed]:
        raise AssertionError(f"a stream that was not foreseen on host {self.name}: {argv}")


def words_of(argv: Sequence[str]) -> list[str]:
    """The words by which a command is known."""
    words = list(argv)
    if tuple(words[: len(GIT)]) == GIT:
        return ["git", *words[len(GIT) :]]
    if tuple(words[: len(ALONE)]) == ALONE:
        words = words[len(ALONE) :]
    return (words[3:] or words[2:]) if words[:2] == ["sh", "-c"] else words


class FakeMachine(FakeHost):
    """A machine on which a lab builds and measures in no time.

    ``done`` lists what was done, in order: "build a", "load a", "run a", where a is the commit."""

    def __init__(
        self, name: str = "here", boots: Sequence[str] = ("first",), builds_of: "FakeMachine | None" = None
    ) -> None:
        self.done: list[str] = []
        self.broken: set[str] = set()  # commits that do not compile
        self.failing: set[str] = set()  # commits whose workload fails
        self.changing: set[str] = set()  # commits whose builds change by themselves
        self.unloadable: set[str] = set()  # commits that cannot load data
        self.binaries: dict[str, str] = {}  # commit → what its artifacts hash to, if not to itself
        self.to_lose: Counter[str] = Counter()  # "build", "load", "run": so many of the next ones are lost
        self.formats: dict[str, str] = {}  # commit → what its format command prints
        self.running: list[str] = []  # jobs of earlier sessions
        self.datasets: dict[str, dict[str, object]] = {}  # key → what is remembered of it
        self.damaged: set[str] = set()  # keys of data that has changed since it was loaded
        self.boots = cycle(boots)  # each time it is asked
        self.free = 1 << 40
        # Key → commit, build.json; those of another machine have been brought here.
        self._builds: dict[str, tuple[str, str]] = builds_of._builds if builds_of else {}
        self._jobs: dict[str, tuple[str, str]] = {}  # folder → state, output
        self._checked_out = self._in_place = ""
        super().__init__(name, {
            "cat /proc/sys/kernel/random/boot_id": lambda *_: f"{next(self.boots)}\n",
            "cat /proc/meminfo": "MemTotal:  8388608 kB\n",
            "lscpu*": json.dumps({"lscpu": [{"field": "On-line CPU(s) list:", "data": "0-3"}]}),
            "df *": lambda *_: f"Avail\n{self.free}\n",
            "sh vmstat iostat": "vmstat\niostat\n",  # missing
            "sh perf": "perf\n",
            "sh *": "",  # any other program is installed
            "orphaned */jobs": "",
            "running */jobs": lambda *_: "".join(f"/{self.name}/jobs/{job}\n{STAT}\n" for job in self.running),
            "ids *": "",
            "ls -1 */datasets": lambda *_: "".join(f"{key}\n" for key in self.datasets),
            "logs *": "", "place *": "", "share *": "", "identity *": "", "native *": "", "ccache --version": "ccache version 4.7.5\n", "steps *": "", "remember *": "", "join *": "", "test -f */build.json": "",
            "kill *": self._kill, "save *": "",
            "cc -E *": "", "gcc -E *": "",
            "rm -rf -- */datasets/*": self._remove_dataset,
            "rm -rf -- *": "",
            "rm -rf --one-file-system -- */builds/*": self._remove_build,
            "remove */builds/*": lambda words, stdin: self._remove_build(words[:2], stdin),
            "rm -rf --one-file-system -- *": "",
            "git * -- *": lambda words, _: f"tree-of-{words[2]} -\n",
            "git */source *": self._check_out,
            "git *": "",
            "cat */dataset.json": lambda words, _: json.dumps(self.datasets[PurePosixPath(words[1]).parent.name]),
            "cat */build.json": lambda words, _: self._builds.get(PurePosixPath(words[1]).parent.name, (0, 1))[1],
            "find *": lambda words, _: self._builds.get(PurePosixPath(words[1]).name, (0, 1))[1],
            "start *": self._start,
            "poll *": self._poll,
            "hash *": lambda *_: f"{self.binaries.get(self._checked_out, self._checked_out)} -\n",
            "keep */builds/*": self._keep_build,
            "keep */data *": self._keep_data,
            "point *": self._point,
            "copy *": self._copy,
            "count *": "1 100\n",
            "collect *": self._collect,
        })  # fmt: skip

    def _check_out(self, words: list[str], _stdin: str) -> Answer:
        self._checked_out = words[3]
        return ""

    def _start(self, words: list[str], stdin: str) -> Answer:
        folder, name = words[1], "-".join(PurePosixPath(words[1]).name.split("-")[2:-1])
        what = {"run": "run", "prepare": "load"}.get(name, "build")
        if "./format" in stdin:
            self._jobs[folder] = "0", f"{self.formats[self._in_place]}\n"
            return STAT
        commit = self._checked_out if what == "build" else self._in_place
        self.done.append(f"{what} {commit}")
        fails = commit in {"build": self.broken, "load": self.unloadable, "run": self.failing}[what]
        state = "lost" if self.to_lose[what] > 0 else "1" if fails and what != "run" else "0"
        self.to_lose[what] -= 1
        begin = f"{STAGE}{COMPILE}: make\n" if what == "build" else ""
        self._jobs[folder] = state, f"{begin}{what}.c:1:1: error: no {commit}\n" if fails else begin
        return STAT

    def _poll(self, words: list[str], _stdin: str) -> Answer:
        state, output = self._jobs[words[1]]
        return f"{state} 0\n{base64.b64encode(output.encode()[int(words[4]) :]).decode()}"

    def _kill(self, words: list[str], _stdin: str) -> Answer:
        job = PurePosixPath(words[1]).name
        if job in self.running:
            self.running.remove(job)
            self.done.append(f"kill {job}")
        return ""

    def _keep_build(self, words: list[str], stdin: str) -> Answer:
        self._builds[PurePosixPath(words[1]).name] = self._checked_out, stdin
        return ""

    def _remove_build(self, words: list[str], _stdin: str) -> Answer:
        del self._builds[PurePosixPath(words[-1]).name]
        return ""

    def _point(self, words: list[str], _stdin: str) -> Answer:
        self._in_place = self._builds[PurePosixPath(words[1]).parent.name][0]
        return "./bin\n" if self._in_place in self.changing else ""

    def _keep_data(self, words: list[str], stdin: str) -> Answer:
        self.datasets[PurePosixPath(words[2]).name] = json.loads(stdin)
        return ""

    def _remove_dataset(self, words: list[str], _stdin: str) -> Answer:
        key = PurePosixPath(words[-1]).name
        del self.datasets[key]
        self.damaged.discard(key)
        return ""

    def _copy(self, words: list[str], _stdin: str) -> Answer:
        if not words[2]:
            return ""
        key = PurePosixPath(words[2]).name
        return f"{2 if key in self.damaged else 1} 100\n{json.dumps(self.datasets[key])}"

    def _collect(self, _words: list[str], _stdin: str) -> Answer:
        status = 7 if self._in_place in self.failing else 0
        end = 1000 + RUN_SECONDS
        stamps = f"1000.0 50.0 50.0\n{end} {50 + RUN_SECONDS} {50 + RUN_SECONDS}\n"
        return f"60.0 1.0\n\f0\f1000.0 {status} {end}\f{stamps}\f\f\f\f"
