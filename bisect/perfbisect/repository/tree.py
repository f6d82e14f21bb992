"""What the tree of a commit holds."""

from perfbisect.repository.git import Repository, git


def top_level(repo: Repository, commit: str) -> frozenset[str]:
    """The names of files and folders at the top of a commit's tree."""
    return frozenset(git(repo, "ls-tree", "-z", "--name-only", "--full-tree", commit).split("\0")) - {""}
