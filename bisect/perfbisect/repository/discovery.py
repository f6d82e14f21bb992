"""The repository that a path means: found by git itself, which refuses those of other users; and whether its checkout has changes.

With an explicit git directory git skips the check of its owner and of ``safe.directory``, so that directory is what git
reports from a command without one.
"""

import os
import shutil
from pathlib import Path

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.git import NO_WORK_TREE, Repository, environment, failure, git, run

_TAKES = "--repo takes the folder of a git repository."


def open_repository(path: Path, *, named: bool = True, shallow: bool = False) -> Repository:
    """The repository at ``path`` or in a folder above it, bare or not.

    A path that the user has ``named`` may itself be a bare repository even where ``safe.bareRepository`` is "explicit".
    Raises UsageError when none exists, for a shallow clone unless ``shallow`` permits it, and for a path that is not UTF-8; EnvironmentFailure when git
    refuses it, as it does for one of another user.
    """
    if shutil.which("git") is None:
        raise EnvironmentFailure("git is not installed.", "apt-get install git")
    _refuse_bytes(path)
    folder = path.expanduser()
    if not folder.is_dir():
        raise UsageError(f"There is no folder {_printable(path)}.", _TAKES)
    is_git_dir = all((folder / name).exists() for name in ("HEAD", "objects", "refs"))
    explicit = ["-c", "safe.bareRepository=all"] if named and is_git_dir else []
    git_dir = Path(_ask(folder, [*explicit, NO_WORK_TREE, "rev-parse", "--absolute-git-dir"]).removesuffix("\n"))
    _refuse_bytes(git_dir)
    of_it = ["rev-parse", "--is-shallow-repository", "--show-object-format", "--git-path", "objects"]
    is_shallow, object_format, objects = _ask(git_dir, [f"--git-dir={git_dir}", NO_WORK_TREE, *of_it]).split("\n", 2)
    if is_shallow == "true" and not shallow:
        raise UsageError(
            f"{path} is a shallow clone: its history is cut off.", f"Fetch the rest: git -C {path} fetch --unshallow"
        )
    # Before git 2.29, which knows no other, it prints the option.
    object_format = "sha1" if object_format.startswith("--") else object_format
    return Repository(
        git_dir, (git_dir / objects.removesuffix("\n")).resolve(), object_format, _work_tree(folder, git_dir)
    )


def is_partial(repo: Repository) -> bool:
    """Whether a clone was made with ``--filter``, and so may lack objects."""
    promisors = r"^remote\..*\.(promisor|partialclonefilter)$"
    return bool(git(repo, "config", "--get-regexp", promisors, allowed=(0, 1)))


def _work_tree(folder: Path, git_dir: Path) -> Path | None:
    """The checkout around ``folder``, if that belongs to the git directory: ``core.worktree`` may name any folder."""
    done = run(["rev-parse", "--show-toplevel"], folder, environment(), errors="surrogateescape")
    top = Path(done.stdout.removesuffix("\n"))
    if done.returncode or not (top / ".git").exists():
        return None
    _refuse_bytes(top)
    back = run(["rev-parse", "--absolute-git-dir"], top, environment(), errors="surrogateescape")
    return top if back.stdout == f"{git_dir}\n" else None


def _refuse_bytes(path: Path) -> None:
    """Raise UsageError for a path that is not UTF-8, which neither a history nor a report can hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The path of the repository {_printable(path)} is not UTF-8.",
            "Rename the folder, or clone the repository.",
        ) from None


def _ask(folder: Path, arguments: list[str]) -> str:
    done = run(arguments, folder, environment(), errors="surrogateescape")
    if done.returncode == 0:
        return done.stdout
    if "fatal: not a git repository (or any" in done.stderr:
        raise UsageError(f"{_printable(folder)} is not a git repository.", _TAKES)
    raise failure(f"{_printable(folder)} cannot be used", done.stderr)


def _printable(path: str | Path) -> str:
    """A path with bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_dirty(repo: Repository) -> bool:
    """True where the user's checkout has uncommitted changes of tracked files; False without a checkout.

    Filters (``filter.NAME.clean``) are programs and are not run. So of a file with a filter nothing can be said.
    """
    if repo.work_tree is None:
        return False
    names = _filters(repo)
    if any("=" in name for name in names):  # on a command line it cannot be turned off
        return False
    off = [f"filter.{name}.{key}" for name in names for key in ("clean=", "smudge=", "process=", "required=false")]
    options = [*(word for setting in off for word in ("-c", setting)), f"--work-tree={repo.work_tree}"]
    # Submodules are repositories with configurations of their own, in which git would run. Of them only commits are built.
    look = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all"]
    changed = [entry[3:] for entry in git(repo, *look, options=options).split("\0") if entry]
    if not changed:
        return False
    ask = ["check-attr", "-z", "--stdin", "filter"]  # prints path, attribute and value of each
    answers = git(repo, *ask, options=options, stdin="\0".join(changed)).split("\0")
    return any(value in ("unspecified", "unset") for value in answers[2::3])


def _filters(repo: Repository) -> set[str]:
    """The names of the filters that any configuration defines."""
    keys = git(repo, "config", "-z", "--name-only", "--get-regexp", r"^filter\..*\.", allowed=(0, 1)).split("\0")
    return {key.removeprefix("filter.").rpartition(".")[0] for key in keys if key}
