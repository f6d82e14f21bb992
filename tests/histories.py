"""Small histories, and a reference implementation of the graph of a range: commit by commit, without git."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Made(NamedTuple):
    """A commit to make: its parents by name, its whole tree (path → content), and its date."""

    parents: Sequence[str]
    tree: Mapping[str, str]
    seconds: int | None = None


Edges = dict[str, tuple[str, ...]]


def code(text: str, doc: str = "") -> dict[str, str]:
    """A tree with a file of code, and with ignored files if ``doc`` is given."""
    return {"src/a.c": text} | ({"doc/x/y.txt": doc, "READ.md": doc} if doc else {})


def counts(tree: Mapping[str, str]) -> dict[str, str]:
    """The files of a tree that are not ignored, found without git's rules for patterns."""
    return {
        path: content
        for path, content in tree.items()
        if not path.startswith("doc/") and not ("/" not in path and path.endswith(".md"))
    }


def ancestors(commits: Mapping[str, Made], name: str) -> set[str]:
    """A commit and all its ancestors."""
    found, todo = set(), [name]
    while todo:
        here = todo.pop()
        if here not in found:
            found.add(here)
            todo += commits[here].parents
    return found


def expected(
    commits: Mapping[str, Made], good: str, bad: str, first_parent: bool = False, base: str | None = None
) -> Edges:
    """The graph of a range by definition: candidate → parents, with "" for node 0.

    A commit that equals a parent is replaced by this parent. ``base`` is node 0 if node 0 is not good.
    """
    base = base or good
    outside = ancestors(commits, good)
    edges: Edges = {}

    def stand_in(name: str) -> list[str]:
        """The nodes that replace a commit: none for a root of ignored files, which has no parent to compare with."""
        if name in outside:
            return [name]
        parents = commits[name].parents[:1] if first_parent else commits[name].parents
        tree = counts(commits[name].tree)
        for parent in parents:
            if counts(commits[parent].tree) == tree:
                return stand_in(parent)
        if not parents and not tree:
            return []
        if name not in edges:
            edges[name] = ()
            edges[name] = tuple(dict.fromkeys(each for parent in parents for each in stand_in(parent)))
        return [name]

    stand_in(bad)
    if first_parent:
        chain = first_parents(commits, bad)
        inside = [name for name in chain if name not in outside]
        holding = [name for name in inside if base in ancestors(commits, name)]
        if base not in chain[len(inside) :][:1] and holding and holding[-1] in edges:
            edges[holding[-1]] += (base,)

    def is_good(name: str) -> bool:
        return counts(commits[name].tree) == counts(commits[base].tree)

    def holds_good(name: str) -> bool:
        return any(is_good(parent) if parent in outside else holds_good(parent) for parent in edges[name])

    return {
        name: tuple(dict.fromkeys("" if p in outside and holds_good(name) else p for p in parents))
        for name, parents in edges.items()
    }


def first_parents(commits: Mapping[str, Made], name: str) -> list[str]:
    """A commit and its chain of first parents."""
    chain = [name]
    while commits[chain[-1]].parents:
        chain.append(commits[chain[-1]].parents[0])
    return chain


def data(text: str) -> str:
    """A text in the language of git fast-import."""
    return f"data {len(text.encode())}\n{text}\n"
