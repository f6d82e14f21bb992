"""The changes of the demo's history: small edits of the engine's sources, stored as TOML in ``changes/``.

An edit is located by a passage of text, not by a line number, so that changes can be applied in almost any order; a
change that depends on others names them in ``needs``.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent

Tree = dict[str, str]  # path → text


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Put ``text`` instead of a passage, after it or before it; without a passage, at the end of the file."""

    file: str
    text: str
    replace: str = ""
    after: str = ""
    before: str = ""

    def apply(self, tree: Tree) -> None:
        """Change the tree. Raises ValueError unless the file contains the passage exactly once."""
        old = tree.get(self.file, "")
        passage = self.replace or self.after or self.before
        if not passage:
            tree[self.file] = old + self.text
            return
        if (found := old.count(passage)) != 1:
            raise ValueError(f"{self.file} has {passage!r} {found} times, not once")
        new = self.text if self.replace else passage + self.text if self.after else self.text + passage
        tree[self.file] = old.replace(passage, new)


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one commit, without its parents."""

    name: str
    subject: str
    edits: tuple[Edit, ...]
    body: str = ""
    needs: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The commit message."""
        return f"{self.subject}\n" + (f"\n{self.body}" if self.body else "")

    def filled(self, words: Mapping[str, int]) -> "Change":
        """The change with each of ``words`` in its texts replaced by a number."""
        edits = []
        for edit in self.edits:
            text = edit.text
            for word, number in words.items():
                text = text.replace(word, str(number))
            edits.append(msgspec.structs.replace(edit, text=text))
        return msgspec.structs.replace(self, edits=tuple(edits))


@cache
def read_changes(kind: str) -> tuple[Change, ...]:
    """The changes of ``changes/KIND.toml``, in the order of the file."""
    tables = msgspec.toml.decode((FOLDER / "changes" / f"{kind}.toml").read_bytes(), type=dict[str, tuple[Change, ...]])
    return tables["change"]


def first_tree() -> Tree:
    """The engine of the first release."""
    root = FOLDER / "engine"
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def applied(changes: Iterable[Change], before: Tree) -> Tree:
    """The tree after ``changes``, in that order. Raises ValueError for a change that cannot be applied."""
    tree = dict(before)
    for change in changes:
        for edit in change.edits:
            try:
                edit.apply(tree)
            except ValueError as error:
                raise ValueError(f"change {change.name}: {error}") from None
    return tree
