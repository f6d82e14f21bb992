"""Namespaces of its own for the whole benchmark: whatever it starts, mounts or connects ends with it."""

import os
import shutil
import subprocess
import sys

_INSIDE = "PERFBISECT_FAULTS_INSIDE"
# $@ the program. The shell stays as the first process of the namespace, which reaps what loses its parent.
_ENTER = """\
ip link set lo up && mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t tmpfs none /var/tmp || exit
"$@"
exit $?
"""
_SPACES = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]


def enclose() -> None:
    """Go on in namespaces of its own; exits with a sentence where none can be made."""
    if os.environ.get(_INSIDE):
        return
    if os.getuid() != 0 or not shutil.which("unshare") or subprocess.run([*_SPACES, "true"], check=False).returncode:
        sys.exit(
            "The faults need root, unshare and ip: all processes, mounts and links live in namespaces of their own."
        )
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", [*_SPACES, "sh", "-c", _ENTER, "enter", sys.executable, *sys.argv])
