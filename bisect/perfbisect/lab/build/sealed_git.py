"""git on a host, without the configuration and the environment that a user has there.

What a command inherits is listed; the rest, which may contain any variable that git or a program of it reads, is not.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from perfbisect.host.outcome import judged
from perfbisect.host.protocol import Host, Result
from perfbisect.repository.git import OPTIONS, PROGRAMS, SEALED, SEARCHED

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
    return _judged(host, done, ("sh", "-c", script, "git", *arguments), timeout, check=True)


def git(host: Host, *arguments: str, check: bool = True) -> Result:
    """Run one git command."""
    done = host.run([*GIT, *arguments], timeout=SHORT, check=False)
    return _judged(host, done, ("git", *arguments), SHORT, check=check)


def _judged(host: Host, done: Result, argv: tuple[str, ...], timeout: float, *, check: bool) -> Result:
    """The result as of ``argv``, what errors are about: not what stands before and around it."""
    return judged(host.name, replace(done, argv=argv), timeout, check)
