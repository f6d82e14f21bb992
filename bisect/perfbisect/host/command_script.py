"""The text that a command over a connection is sent as: a script for a POSIX shell on the host."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from perfbisect.host.outcome import TIMED_OUT, no_folder, timed_out
from perfbisect.host.programs import absent
from perfbisect.host.protocol import Result

GRACE = 5.0  # seconds between TERM and KILL for a command that takes too long
_ABSENT, _NOWHERE = "perfbisect: no such program", "perfbisect: no such folder"

# A command cannot see that its stdin was truncated by a lost connection: it is started when all of it has arrived.
_WHOLE = """\
perfbisect_stdin=$(head -c {length} | base64 -w 0)
[ "${{#perfbisect_stdin}}" -eq {encoded} ] || {{ echo "perfbisect: stdin was cut short" >&2; exit 1; }}
{{ printf %s "$perfbisect_stdin" | base64 -d; }} 2>/dev/null | """


def script(
    argv: Sequence[str], cwd: PurePosixPath | None, env: Mapping[str, str] | None, timeout: float, length: int
) -> str:
    """The script for a POSIX shell on the host. The shell stays the command's parent, so that a signal becomes a status.

    ``length`` is the length of the command's stdin in bytes.
    """
    lines = [f"cd -- {shlex.quote(str(cwd))} 2>/dev/null || {{ echo {_NOWHERE} >&2; exit 1; }}"] if cwd else []
    if wrong := [name for name in env or {} if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise ValueError(f"not a name of an environment variable: {wrong[0]!r}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    whole = _WHOLE.format(length=length, encoded=-(-length // 3) * 4) if length else ""
    lines += [require(argv[0]), f"{whole}timeout -k {GRACE:g} {timeout:g} {shlex.join(argv)}", "exit $?"]
    return "\n".join(lines)


def require(program: str) -> str:
    return f"command -v -- {shlex.quote(program)} >/dev/null || {{ echo {_ABSENT} >&2; exit 127; }}"


def finished(argv: tuple[str, ...], timeout: float, seconds: float, status: int, out: str, err: str) -> Result:
    """The result of a script that has taken so many ``seconds``."""
    if status in (TIMED_OUT, 128 + 9) and seconds >= timeout:
        return timed_out(argv, timeout)
    return Result(argv, status, out, err)


def check_started(host: str, result: Result, cwd: PurePosixPath | None) -> None:
    """Raise EnvironmentFailure where the program or the folder of a script does not exist."""
    stderr = result.stderr.strip()
    if stderr == _ABSENT:
        raise absent([result.argv[0]], host)
    if stderr == _NOWHERE:
        raise no_folder(host, cwd)
