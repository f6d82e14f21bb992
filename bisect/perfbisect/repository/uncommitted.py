"""Whether a user's checkout has changes that no commit contains, found without running a program of the repository."""

from perfbisect.repository.git import Repository, git


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
