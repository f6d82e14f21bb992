"""Commits of a repository on this machine, brought to a bare repository on a host: git's own push, through the host's connection.

git talks to a socket whose other end is its receiving side on the host. So each host has one connection with one set of
settings, and only missing objects are sent.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.repository.git import OPTIONS, environment, talk

REFS = "refs/perfbisect"
SENDING = "Writing objects"  # as git calls it
ATTEMPTS = 5  # at a push during which the connection broke off

# git collects no garbage in the background, which would disturb a measurement.
_RECEIVE = ("git", "-c", "gc.auto=0", "-c", "receive.autogc=false", "-c", "receive.fsckObjects=false", "receive-pack")


def push(host: Host, bare: PurePosixPath, git_dir: Path, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bring ``commits`` and all that they reach; a reference keeps each of them there.

    Yields steps done and steps in all, the first once it is known that something has to be sent.
    Raises EnvironmentFailure for a shallow or partial clone, and when the connection stays lost.
    """
    for left in reversed(range(ATTEMPTS)):
        absent = _absent(host, bare, commits)  # which also waits for a lost connection
        if not absent:
            return
        _refuse_incomplete(git_dir)
        yield 0, 0
        try:
            yield from _push(host, bare, git_dir, absent)
            return
        except ConnectionLost:
            if not left:
                raise


def _absent(host: Host, bare: PurePosixPath, commits: Sequence[str]) -> list[str]:
    """Those of ``commits`` that have not been sent to the repository yet."""
    wanted = list(dict.fromkeys(commits))
    script = 'cd -- "$1" && shift && for sha do [ -f "$sha" ] || echo "$sha"; done'
    known = host.run(["sh", "-c", script, "absent", str(bare / REFS), *wanted], check=False)
    return known.stdout.split() if known.ok else wanted


def _push(host: Host, bare: PurePosixPath, git_dir: Path, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    refs = [f"{commit}:{REFS}/{commit}" for commit in commits]
    what = f"{git_dir} cannot be pushed to host {host.name}"
    # The user's choice of allowed protocols concerns addresses; the socket is none.
    inherited = {name: value for name, value in environment().items() if name != "GIT_ALLOW_PROTOCOL"}
    failed: EnvironmentFailure | None = None
    try:
        with host.stream([*_RECEIVE, str(bare)]) as socket:
            end = socket.fileno()
            sending = [f"--git-dir={git_dir}", "-c", "protocol.fd.allow=always", "push", "--progress", f"fd::{end}"]
            try:
                for stage, done, total in talk(what, [*sending, *refs], inherited, [end]):
                    if stage == SENDING:
                        yield done, total
            except EnvironmentFailure as error:  # the other end may report a better reason
                failed = error
    except CommandFailed as refused:
        raise EnvironmentFailure(f"{what}: {refused}", refused.advice) from refused
    if failed:
        raise failed


def _refuse_incomplete(git_dir: Path) -> None:
    """Refuse a clone that lacks objects which another machine needs."""
    if _git(git_dir, "rev-parse", "--is-shallow-repository") == "true":
        raise EnvironmentFailure(
            f"{git_dir} is a shallow clone, whose commits cannot be brought to another machine",
            f"Complete it with: git --git-dir={git_dir} fetch --unshallow",
        )
    promisors = _git(git_dir, "config", "--get-regexp", r"^remote\..*\.(promisor|partialclonefilter)$")
    if promisors:
        raise EnvironmentFailure(
            f"{git_dir} is a partial clone, whose commits cannot be brought to another machine",
            "Make a whole clone, without --filter, and give it by --repo.",
        )


def _git(git_dir: Path, *arguments: str) -> str:
    """What git on this machine prints; nothing when it fails."""
    argv = ["git", *OPTIONS, f"--git-dir={git_dir}", *arguments]
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False).stdout.strip()
