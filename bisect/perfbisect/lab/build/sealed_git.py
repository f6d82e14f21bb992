"""git on a host, without the configuration and the environment that a user has there.

What a command inherits is listed; the rest, which may contain any variable that git or a program of it reads, is not.
"""

import shlex
from collections.abc import Sequence

from perfbisect.host.protocol import Host, Result
from perfbisect.repository.git import OPTIONS, PROGRAMS, SEALED

_INHERITED = " ".join(f'${{{name}:+"{name}=${name}"}}' for name in PROGRAMS)
_FIXED = " ".join(f"{name}={shlex.quote(value)}" for name, value in SEALED.items())
ALONE = ("sh", "-c", f'exec env -i {_INHERITED} {_FIXED} "$@"', "alone")  # before a command
GIT = (*ALONE, "git", *OPTIONS)
_FUNCTION = f'git() {{ command git {shlex.join(OPTIONS)} "$@"; }}\n'


def scripted(host: Host, script: str, arguments: Sequence[str], *, stdin: str = "", timeout: float = 60.0) -> Result:
    """Run a script in which ``git`` has all safe options."""
    return host.run([*ALONE, "sh", "-c", _FUNCTION + script, "git", *arguments], stdin=stdin, timeout=timeout)


def git(host: Host, *arguments: str, check: bool = True) -> Result:
    """Run one git command."""
    return host.run([*GIT, *arguments], check=check)
