"""Who has made what a history contains: each row about a process says whose that is, as USER@MACHINE:NUMBER.

The number is a secret of the user's state folder, so that no file of others passes for an own one, and machines that share the
folder are one. A file that is sent or copied says by it whose it is.
"""

import os
import re
import secrets
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from perfbisect.errors import PerfBisectError
from perfbisect.folders import state_folder
from perfbisect.process import this_process, user

UNKNOWN = "someone unknown"


def worker() -> str:
    """This process, and whose it is."""
    return f"{maker()} {this_process()}"


def copied(how: str = "imported") -> str:
    """In place of the process that worked on a session elsewhere: none of this machine, of an owner who is this user.

    In a file that is ``exported`` for others it is without the secret, which makes the file another's for everyone.
    """
    return f"{own_name() if how == 'exported' else maker()} {how} 0 0 0"


def whose(process: object) -> str:
    """Whose a session is that this process worked on; "" for this user's."""
    name, *rest = str(process).split(" ")
    if name == maker() and len(rest) == 4:
        return ""
    return name.partition(":")[0][:64] if len(rest) == 4 else UNKNOWN


def own_name() -> str:
    """This user and machine, as USER@MACHINE."""
    return re.sub(r"[^\w.@-]", "-", f"{user()}@{socket.gethostname()}", flags=re.ASCII)[:64]


def maker() -> str:
    """This user and machine, with the number; without it where the state folder cannot be written."""
    try:
        return _made(state_folder() / "maker")
    except (OSError, PerfBisectError):
        return own_name()


@lru_cache
def _made(path: Path) -> str:
    """The contents of the file, which is made if it is missing, whole: another process may read it at this moment."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"maker-{os.getpid()}")
        new.touch(0o600)
        new.write_text(f"{own_name()}:{secrets.token_hex(8)}")
        with suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    return path.read_text(encoding="utf-8").strip()
