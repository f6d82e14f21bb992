"""Commits of a repository on this machine, brought to a bare repository on a host: git's own push, through our connection.

git speaks with a socket on one end of which its receiving side runs on the host, so that there is one way to a host
with one set of settings, and only the objects that are missing there travel.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.repository.command import OPTIONS, environment, failure

REFS = "refs/perfbisect"
ATTEMPTS = 5  # at a push during which the connection broke off

# Nothing is tidied up behind our back, while something else is measured.
_RECEIVE = ("git", "-c", "gc.auto=0", "-c", "receive.autogc=false", "-c", "receive.fsckObjects=false", "receive-pack")


def push(host: Host, bare: PurePosixPath, git_dir: Path, commits: Sequence[str]) -> None:
    """Bring ``commits`` and all that they reach; a reference keeps each of them there.

    Raises EnvironmentFailure for a repository that has not everything itself, and when the connection stays lost.
    """
    script = 'cd -- "$1" && shift && for sha do [ -f "$sha" ] || echo "$sha"; done'
    wanted = list(dict.fromkeys(commits))
    asked = ["sh", "-c", script, "absent", str(bare / REFS), *wanted]
    known = host.run(asked, check=False)
    absent = known.stdout.split() if known.ok else wanted
    if not absent:
        return
    _refuse_incomplete(git_dir)
    for left in reversed(range(ATTEMPTS)):
        try:
            _push(host, bare, git_dir, absent)
            return
        except ConnectionLost:
            if not left:
                raise


def _push(host: Host, bare: PurePosixPath, git_dir: Path, commits: Sequence[str]) -> None:
    refs = [f"{commit}:{REFS}/{commit}" for commit in commits]
    try:
        with host.stream([*_RECEIVE, str(bare)]) as socket:
            end = socket.fileno()
            sent = _git(git_dir, "-c", "protocol.fd.allow=always", "push", "--quiet", f"fd::{end}", *refs, end=end)
    except CommandFailed as refused:  # then git has said why
        raise EnvironmentFailure(
            f"{git_dir} cannot be pushed to host {host.name}: {refused}", refused.advice
        ) from refused
    if sent.returncode:
        raise failure(f"{git_dir} cannot be pushed to host {host.name}", sent.stderr)


def _refuse_incomplete(git_dir: Path) -> None:
    """A clone that lacks objects has not what another machine needs."""
    if _git(git_dir, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        raise EnvironmentFailure(
            f"{git_dir} is a shallow clone, whose commits cannot be brought to another machine",
            f"Complete it with: git --git-dir={git_dir} fetch --unshallow",
        )
    promisors = _git(git_dir, "config", "--get-regexp", r"^remote\..*\.(promisor|partialclonefilter)$").stdout
    if promisors.strip():
        raise EnvironmentFailure(
            f"{git_dir} is a partial clone, whose commits cannot be brought to another machine",
            "Make a whole clone, without --filter, and give it by --repo.",
        )


def _git(git_dir: Path, *arguments: str, end: int | None = None) -> subprocess.CompletedProcess[str]:
    """git on this machine, with one end of a socket if that is given."""
    inherited = {name: value for name, value in environment().items() if name != "GIT_ALLOW_PROTOCOL"}
    return subprocess.run(
        ["git", *OPTIONS, f"--git-dir={git_dir}", *arguments],
        env=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=() if end is None else (end,),
        encoding="utf-8",
        errors="replace",
        check=False,
    )
