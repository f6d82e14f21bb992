"""The one interface through which effects on a machine happen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Result:
    """A finished command. Output is text, undecodable bytes replaced."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """True when the command ended with status 0."""
        return self.status == 0


class Host(Protocol):
    """A machine with a root folder of ours; nothing outside ``root`` is written.

    ``run`` is for short commands. Long ones are jobs (``perfbisect.host.jobs``), which are made of ``run``.
    """

    @property
    def name(self) -> str:
        """The host's name in hosts.toml."""

    @property
    def root(self) -> PurePosixPath:
        """The folder on that host under which everything of ours lives."""

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run ``argv`` (never through a shell) and wait for it; ``env`` is added to the host's own environment.

        Raises CommandFailed when ``check`` and the status is not 0 (124 when ``timeout`` seconds have passed),
        EnvironmentFailure when the host cannot be reached or the program does not exist.
        """
