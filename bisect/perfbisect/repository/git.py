"""Runs git such that neither the environment nor the configuration of the user changes its output.

GitPython opens repositories, but it can only add to the environment of its commands, and an inherited GIT_DIR (set in
hooks), index file or replaced object would change their results. So commands are run here. The user's configuration is
still read, because it defines which repositories are safe and how to reach a remote; options that change output are set.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfbisect.errors import EnvironmentFailure

if TYPE_CHECKING:
    from git import Repo

SETTINGS = ("core.quotePath=off", "log.showSignature=false", "i18n.logOutputEncoding=UTF-8", "color.ui=false",
            "core.commitGraph=false")  # fmt: skip
OPTIONS = ("--no-pager", "--no-replace-objects", *(word for setting in SETTINGS for word in ("-c", setting)))

STEP = re.compile(r"(?:remote: )?([A-Z][A-Za-z ]+):\s+\d+% \((\d+)/(\d+)\)")

# How to reach remotes, and where the user's configuration is.
KEPT = ("GIT_SSH", "GIT_SSL_", "GIT_HTTP_", "GIT_PROXY_", "GIT_ASKPASS", "GIT_TERMINAL_PROMPT", "GIT_ALLOW_PROTOCOL",
        "GIT_EXEC_PATH", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")  # fmt: skip


def environment() -> Mapping[str, str]:
    """The environment of every git command: that of this process, without variables that change what git does, in English."""
    steering = _steering()
    kept = {name: value for name, value in os.environ.items() if name not in steering}
    return kept | {"LC_ALL": "C", "LANGUAGE": "C"}


@contextmanager
def unsteered() -> Iterator[None]:
    """Remove variables that change what git does from this process, while GitPython reads its environment."""
    steering = _steering()
    for name in steering:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(steering)


def _steering() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("GIT_") and not name.startswith(KEPT)}


def git(repo: "Repo", *arguments: str, stdin: str = "", allowed: tuple[int, ...] = (0,)) -> str:
    """The output of a git command in a repository, independent of the working directory.

    Raises EnvironmentFailure with git's own message when its status is not among ``allowed``.
    """
    done = subprocess.run(
        ["git", *OPTIONS, f"--git-dir={repo.git_dir}", *arguments],
        cwd=repo.git_dir,
        env=environment(),
        input=stdin,
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode not in allowed:
        raise failure(f"git {arguments[0]} failed in {repo.git_dir}", done.stderr)
    return done.stdout


def talk(
    what: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> Iterator[tuple[str, int, int]]:
    """Run a git command that reports progress: yields its activity, the steps done, and all steps.

    The command is terminated when the generator is closed or interrupted. Raises EnvironmentFailure, beginning with ``what``, when it fails.
    """
    said = []
    with subprocess.Popen(
        ["git", *OPTIONS, *arguments],
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stderr or ():
                if step := STEP.match(line):
                    yield step[1], int(step[2]), int(step[3])
                else:
                    said.append(line)
        except BaseException:
            process.terminate()  # not killed, so that it can end its children, which write, too
            raise
    if process.returncode:
        raise failure(what, "\n".join(said))


def failure(what: str, stderr: str) -> EnvironmentFailure:
    """The error for a git command that failed, with the line of its output that gives the reason."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    why = (fatal or lines or ["it printed no message"])[-1 if not fatal else 0]
    advice = ""
    if "dubious ownership" in why:
        advice = "If you trust that folder: git config --global --add safe.directory FOLDER"
    elif "No space left on device" in stderr:
        advice = "Free some space there."
    return EnvironmentFailure(f"{what}: {why}", advice)
