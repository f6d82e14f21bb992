"""git on a host, without the configuration and the environment that a user has there; and commits that are brought to it.

What a command inherits is listed; the rest, which may contain any variable that git or a program of it reads, is not.

Commits come to a bare repository on the host by git's own push, through the host's connection: git talks to a socket whose
other end is its receiving side there. So each host has one connection with one set of settings, and only missing objects
are sent. It pushes from a temporary repository that borrows the objects, so that no hook, address or signature that a user
or the repository has configured takes part.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host.protocol import Host, Result, judged
from perfbisect.repository.discovery import is_partial
from perfbisect.repository.git import OPTIONS, PROGRAMS, SEALED, SEARCHED, Repository, borrowed, failure, sealed, talk

SHORT = 60.0  # seconds that a single command takes at most

# Of lists of folders, those that are absolute: others would be below a checkout.
_ABSOLUTE = """\
absolute() { kept=; for each in $1; do case $each in /*) kept=$kept${kept:+:}$each;; esac; done; }
set -f; IFS=:
"""
_SEARCHED = "".join(f'absolute "${{{name}-}}"; {name}=$kept\n' for name in SEARCHED)
_INHERITED = " ".join(f'${{{name}:+"{name}=${name}"}}' for name in PROGRAMS)
_FIXED = " ".join(f"{name}={shlex.quote(value)}" for name, value in SEALED.items())
ALONE = ("sh", "-c", f'{_ABSOLUTE}{_SEARCHED}exec env -i {_INHERITED} {_FIXED} "$@"', "alone")  # before a command
GIT = (*ALONE, "git", *OPTIONS)
_FUNCTION = f'git() {{ command git {shlex.join(OPTIONS)} "$@"; }}\n'


def scripted(host: Host, script: str, arguments: Sequence[str], *, stdin: str = "", timeout: float = SHORT) -> Result:
    """Run a script in which ``git`` has all safe options."""
    argv = [*ALONE, "sh", "-c", _FUNCTION + script, "git", *arguments]
    done = host.run(argv, stdin=stdin, timeout=timeout, check=False)
    return judged(host.name, replace(done, argv=("sh", "-c", script, "git", *arguments)), True)


def git(host: Host, *arguments: str, check: bool = True) -> Result:
    """Run one git command."""
    done = host.run([*GIT, *arguments], timeout=SHORT, check=False)
    return judged(host.name, replace(done, argv=("git", *arguments)), check)


REFS = "refs/perfbisect"
SENDING = "Writing objects"  # as git calls it
ATTEMPTS = 5  # at a push during which the connection broke off

# git collects no garbage in the background, which would disturb a measurement.
_RECEIVE = (*GIT, "-c", "gc.auto=0", "-c", "receive.autogc=false", "-c", "receive.fsckObjects=false", "receive-pack")


def push(host: Host, bare: PurePosixPath, repository: Repository, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bring ``commits`` and all that they reach; a reference keeps each of them there.

    Yields steps done and steps in all, the first once it is known that something has to be sent.
    Raises EnvironmentFailure for a partial clone, and when the connection stays lost.
    """
    for left in reversed(range(ATTEMPTS)):
        absent = _absent(host, bare, commits)  # which also waits for a lost connection
        if not absent:
            return
        _refuse_incomplete(repository)
        yield 0, 0
        try:
            yield from _push(host, bare, repository, absent)
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


def _push(host: Host, bare: PurePosixPath, repository: Repository, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    refs = [f"{commit}:{REFS}/{commit}" for commit in commits]
    what = f"{repository.folder} cannot be pushed to host {host.name}"
    env = sealed() | {"GIT_ALLOW_PROTOCOL": "fd"}
    failed: EnvironmentFailure | None = None
    try:
        with borrowed(repository) as lender, host.stream([*_RECEIVE, str(bare)]) as socket:
            end = socket.fileno()
            try:
                sending = [f"--git-dir={lender}", "push", "--progress", f"fd::{end}", *refs]
                for stage, done, total in talk(what, sending, env, [end]):
                    if stage == SENDING:
                        yield done, total
            except EnvironmentFailure as error:  # the other end may report a better reason
                failed = error
    except CommandFailed as refused:
        why = refused.output or f"git receive-pack ended with status {refused.status}"
        raise failure(what, why) from refused
    if failed:
        raise failed


def _refuse_incomplete(repository: Repository) -> None:
    """Refuse a clone that lacks objects which another machine needs."""
    if is_partial(repository):
        raise EnvironmentFailure(
            f"{repository.folder} is a partial clone, whose commits cannot be brought to another machine",
            "Make a whole clone, without --filter, and give it by --repo.",
        )
