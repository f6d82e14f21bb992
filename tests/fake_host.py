"""A fake host for tests, which executes nothing and answers expected commands.

``FakeHost("far", {"uname *": "6.1\n", "make *": 2})`` answers by patterns: with an output, a status, an error, or a
function of the words and stdin.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from perfbisect.host.protocol import Command, Host, Result, StreamedCommand
from perfbisect.lab.building.checkout import ALONE, GIT

Answer = str | int | BaseException | Callable[[list[str], str], "Answer"]
"""The output of a command, the status of a failed command, an exception, or a function of the words and of stdin."""


class FakeHost(Host):
    """``answers`` maps a pattern of fnmatch to an answer; the first pattern that matches counts.

    Patterns match the words of a command, without git's options and without the prefix that clears the environment. Of
    ``sh -c SCRIPT NAME ARGUMENTS``, the words are NAME and ARGUMENTS, if there are any.
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

    def begin_stream(self, argv: tuple[str, ...], far: socket.socket) -> AbstractContextManager[StreamedCommand]:
        raise AssertionError(f"a stream that was not foreseen on host {self.name}: {argv}")


def words_of(argv: Sequence[str]) -> list[str]:
    """The words of a command that patterns match."""
    words = list(argv)
    if tuple(words[: len(GIT)]) == GIT:
        return ["git", *words[len(GIT) :]]
    if tuple(words[: len(ALONE)]) == ALONE:
        words = words[len(ALONE) :]
    return (words[3:] or words[2:]) if words[:2] == ["sh", "-c"] else words
