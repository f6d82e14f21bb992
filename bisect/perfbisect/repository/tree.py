"""What the tree of a commit holds."""

from perfbisect.repository.git import Repository, git


def top_level(repo: Repository, commit: str) -> frozenset[str]:
    """The names of the files at the top of a commit's tree."""
    entries = (entry.partition("\t") for entry in git(repo, "ls-tree", "-z", "--full-tree", commit).split("\0"))
    return frozenset(name for kind, _, name in entries if name and kind.split()[1] == "blob")
