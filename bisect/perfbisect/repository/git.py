"""Runs git so that neither the environment nor any configuration changes git's output or makes git execute a program.

A repository may have been made by a person who is not trusted. The module ``discovery`` handles git's check of a
repository's owner. This module enforces rules for every git command, and no configuration of a repository can change
these rules: options that affect output have fixed values, options that start programs are off, no object is fetched on
demand, and git gets only the environment variables that this module lists.

The user's configuration is read, because it defines which repositories are safe and how to reach a remote. Commands
that do not need the user's configuration run with the variables ``SEALED`` and without any configuration, in a bare
repository that perfbisect has made. The bare repository borrows the objects of the untrusted repository, but not its
configuration and hooks.
"""

import fcntl
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from perfbisect.errors import EnvironmentFailure
from perfbisect.folders import cache_folder

SETTINGS = ("core.quotePath=off", "log.showSignature=false", "i18n.logOutputEncoding=UTF-8", "color.ui=false",
            "core.commitGraph=false", "core.fsmonitor=false", "core.hooksPath=/dev/null")  # fmt: skip
OPTIONS = ("--no-pager", "--no-replace-objects", *(word for setting in SETTINGS for word in ("-c", setting)))

# git runs in the git directory, and uses it as the work tree, because ``core.worktree`` may name any folder, also a
# folder that does not exist (as for a removed submodule).
NO_WORK_TREE = "--work-tree=."

LONGEST = 3600.0  # longest time of a command in seconds: histories of a million commits take minutes
LIMITED = 20.0  # longest time, in seconds, in which git reads a file of a repository

# For every command. Grafts and replaced objects would change the history.
FIXED = {"LC_ALL": "C", "LANGUAGE": "C", "GIT_GRAFT_FILE": os.devnull, "GIT_NO_REPLACE_OBJECTS": "1",
         "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_ATTR_NOSYSTEM": "1"}  # fmt: skip
# For commands that need no remote: git before 2.45 ignores GIT_NO_LAZY_FETCH, and would fetch missing objects.
NO_REMOTE = {"GIT_ALLOW_PROTOCOL": "none"}
# For commands on a repository that perfbisect made: git reads no configuration of the user or the system.
SEALED = {**FIXED, **NO_REMOTE, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
# Variables with lists of folders. A relative or empty entry would be a folder of the repository, in which git runs, and
# which may contain programs of strangers. So these entries are left out.
SEARCHED = ("PATH", "LD_LIBRARY_PATH")
PROGRAMS = (*SEARCHED, "TMPDIR")

# Variables that every command may inherit: by SUDO_UID git decides whose repositories are safe.
_INHERITED = (*PROGRAMS, "HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "SUDO_UID", "TZ", "GIT_EXEC_PATH",
              "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM",
              "GIT_CONFIG_GLOBAL", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_*", "GIT_CONFIG_VALUE_*")  # fmt: skip
# Further variables for clone and fetch: how to reach a remote.
_TO_REMOTES = (*_INHERITED, "GIT_SSH*", "GIT_SSL_*", "GIT_HTTP_*", "GIT_PROXY_*", "GIT_ASKPASS", "GIT_TERMINAL_PROMPT",
               "GIT_ALLOW_PROTOCOL", "SSH_*", "SSL_CERT_*", "CURL_CA_BUNDLE", "*_proxy", "*_PROXY", "KRB5*", "GNUPGHOME",
               "GPG_TTY", "TERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_*", "DBUS_SESSION_BUS_ADDRESS")  # fmt: skip
PROTOCOLS = "file:git:http:https:ssh"  # allowed protocols of remotes, unless the user sets GIT_ALLOW_PROTOCOL


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository on this machine. Paths are absolute."""

    git_dir: Path  # in a linked work tree, the git directory of this work tree
    objects: Path  # folder of objects: of all work trees, or a folder that borrows from it and has further objects
    object_format: str  # "sha1", "sha256"
    work_tree: Path | None = None  # None without a checkout

    @property
    def folder(self) -> Path:
        """The folder of the repository that users know: the checkout or, if there is none, the git directory."""
        return self.work_tree or self.git_dir


def local_environment() -> dict[str, str]:
    """The environment variables for git commands in a repository on this machine that contact no remote."""
    return _inherited_variables(_INHERITED) | FIXED | NO_REMOTE


def remote_environment() -> dict[str, str]:
    """The environment variables for git's clone and fetch."""
    return {"GIT_ALLOW_PROTOCOL": PROTOCOLS} | _inherited_variables(_TO_REMOTES) | FIXED


def isolated_environment() -> dict[str, str]:
    """The environment variables for git commands that must not read the configuration of the user or of the system."""
    return _inherited_variables(PROGRAMS) | SEALED


def _inherited_variables(patterns: Sequence[str]) -> dict[str, str]:
    names = [name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in patterns)]
    values = {name: os.environ[name] for name in names}
    for name in values.keys() & set(SEARCHED):
        values[name] = ":".join(folder for folder in values[name].split(":") if folder.startswith("/"))
    return {name: value for name, value in values.items() if value}


def pathspecs_except(ignore: Iterable[str]) -> list[str]:
    """git's pathspecs of all files of a tree except the paths that match ``ignore``, glob patterns from the tree's
    top."""
    return [":(top)", *(f":(top,exclude,glob){pattern}" for pattern in ignore)]


def run_git(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], stdin: str = "", *, errors: str = "replace",
    script: str = "", may_wait_for: str = "",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a git command, or a shell ``script`` with git commands, in a folder, and wait for the end of the command.

    ``errors`` states how bytes that are not UTF-8 are decoded; with "surrogateescape", CR characters are kept, because
    a path may contain them. ``may_wait_for`` names a file that git reads and that might block; if it is given, git is
    ended after LIMITED seconds. Raises EnvironmentFailure if git is missing or takes too long.
    """
    program = ["sh", "-c", script, "git"] if script else ["git", *OPTIONS]
    try:
        done = subprocess.run(
            [*program, *arguments],
            cwd=folder,
            env=env,
            input=stdin.encode(errors=errors),
            check=False,
            capture_output=True,
            timeout=LIMITED if may_wait_for else LONGEST,
        )
        streams = [stream.decode(errors=errors) for stream in (done.stdout, done.stderr)]
        if errors != "surrogateescape":
            streams = [re.sub("\r\n?", "\n", stream) for stream in streams]
        return subprocess.CompletedProcess(done.args, done.returncode, *streams)
    except FileNotFoundError as error:
        if error.filename != "git":
            raise
        raise EnvironmentFailure("git is not installed.", "To install it: apt-get install git") from None
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailure(
            f"git did not end within {error.timeout:g} s in {printable_path(folder)}{may_wait_for and '; it may wait to read '}{may_wait_for}",
            "Check whether a file of the repository is a FIFO, or is on a server that does not answer.",
        ) from None


def repository_arguments(repo: Repository) -> list[str]:
    """The arguments that select a repository, whatever the working directory and ``core.worktree`` are."""
    return [f"--git-dir={repo.git_dir}", NO_WORK_TREE]


def repository_environment(repo: Repository) -> dict[str, str]:
    """The environment variables for commands in a repository, which may borrow objects from another repository."""
    return local_environment() | {"GIT_OBJECT_DIRECTORY": str(repo.objects)}


def git(
    repo: Repository, *arguments: str, options: Sequence[str] = (), stdin: str = "", allowed: tuple[int, ...] = (0,),
    errors: str = "replace",
) -> str:  # fmt: skip
    """The output of a git command in a repository; the output does not depend on the working directory or on
    ``core.worktree``.

    ``options`` are git's options before the name of the command; for ``errors``, see ``run_git``. Raises
    EnvironmentFailure with git's message if git's exit status is not among ``allowed``.
    """
    command = [*repository_arguments(repo), *options, *arguments]
    done = run_git(command, repo.git_dir, repository_environment(repo), stdin, errors=errors)
    if done.returncode not in allowed:
        raise git_failure(f"git {arguments[0]} failed in {repo.git_dir}", done.stderr)
    return done.stdout


def config_value(repo: Repository, key: str) -> str:
    """The value of a key in a repository's configuration; "" if the key is not set."""
    return git(repo, "config", "--get", key, allowed=(0, 1)).strip()


def printable_path(path: str | Path) -> str:
    """A path as text, in which bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def run_with_progress(
    failed_action: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    *,
    may_prompt: bool = True,
) -> Iterator[tuple[str, int, int]]:
    """Run a git command that reports progress, and yield (activity, number of finished steps, number of all steps).

    Unless ``may_prompt`` is true, neither git nor ssh can ask for a password on the terminal. If the generator is
    closed or interrupted, the command is terminated. If git fails, raises EnvironmentFailure, which begins with
    ``failed_action``.
    """
    from perfbisect.repository.library import GitProgress

    messages, steps = [], GitProgress()
    with subprocess.Popen(
        ["git", *OPTIONS, *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=not may_prompt,  # so that git cannot prompt on the terminal
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stderr or ():
                if step := steps.parsed_progress(line):
                    yield step
                else:
                    messages.append(line)
        except BaseException:
            process.terminate()  # not killed, so that git can end its child processes, which write files
            raise
    if process.returncode:
        raise git_failure(failed_action, "\n".join(messages))


def git_failure(failed_action: str, stderr: str) -> EnvironmentFailure:
    """The error for a failed git command, with the line of git's stderr that has the reason, and advice."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    why = fatal[0] if fatal else lines[-1] if lines else "git printed no message"
    if why.endswith(":") and why != lines[-1]:  # git continues the sentence on the next line
        why = f"{why} {lines[lines.index(why) + 1]}"
    advice = ""
    if "dubious ownership" in why:
        command = next((line for line in lines if line.startswith("git config ")), "git config … safe.directory FOLDER")
        advice = f"The repository belongs to another user, whose configuration could start programs. If you trust this user: {command}"
    elif "safe.bareRepository" in why:
        advice = "Give the bare repository itself with --repo FOLDER."
    elif "No space left on device" in stderr:
        advice = "Free space on that disk."
    return EnvironmentFailure(f"{failed_action}: {why}", advice)


# $1: the bare repository. $2: its object format. $3: the objects folder from which it borrows objects, or empty.
BARE = """\
had=$(git config --file "$1/config" extensions.objectFormat)
[ "${had:-sha1}" = "$2" ] || rm -rf "$1" || exit
format=--object-format=$2; [ "$2" != sha1 ] || format=
[ -f "$1/HEAD" ] || { mkdir -p "${1%/*}" && git init -q --bare --template= $format "$1"; } || exit
if [ -n "$3" ]; then printf '%s\\n' "$3" | cat >"$1/objects/info/alternates"
else rm -f "$1/objects/info/alternates"; fi
"""


def alternates_line(objects: Path) -> str:
    """A folder of objects as a line of an alternates file; a name that git would misread is quoted."""
    path = str(objects)
    if not re.search(r'^["#]|\n', path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def ensure_bare_repository(path: Path, object_format: str, alternates_line: str = "") -> None:
    """Make a bare repository at ``path`` unless it exists. Raises EnvironmentFailure if this fails."""
    done = run_git([str(path), object_format, alternates_line], path.parent, isolated_environment(), script=BARE)
    if done.returncode:
        raise git_failure(f"{path} cannot be created", done.stderr)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A context with an empty folder, which is removed at the end of the ``with`` block.

    Each call also removes temporary folders of killed processes: folders whose lock no process holds.
    """
    parent = cache_folder().absolute() / "temporary"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / "lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            for folder in filter(Path.is_dir, [*parent.iterdir()]):
                with suppress(BlockingIOError), (folder / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rmtree(folder, ignore_errors=True)
            folder = Path(mkdtemp(dir=parent))
            lock = (folder / "lock").open("a")  # the lock ends with this process at the latest
            fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "files").mkdir()
    except OSError as error:
        advice = "Set XDG_CACHE_HOME to a folder for cached files."
        raise EnvironmentFailure(f"{parent} cannot be used: {error.strerror}", advice) from error
    try:
        yield folder / "files"
    finally:
        rmtree(folder, ignore_errors=True)
        lock.close()


@contextmanager
def temporary_bare_repository(repo: Repository) -> Iterator[Path]:
    """A temporary bare repository that borrows the objects of the repository ``repo``.

    Raises EnvironmentFailure if git fails.
    """
    with temporary_folder() as folder:
        bare = folder / "objects.git"
        ensure_bare_repository(bare, repo.object_format, alternates_line(repo.objects))
        yield bare
