"""The rounds of `bisect narrow`: their end by a budget, and their continuation."""

from pathlib import Path

import pytest

from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Step, Verdict
from perfbisect.hunt.patches import PartSearch, needs_from_error
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import partial_diff_commits
from repos import Repo

SLOW = Interval(0.5, 0.4, 0.6)


def named(step: int) -> Verdict:
    """The verdict that this step is the culprit."""
    return Found(Step(step, 0.99, SLOW, (step - 1,)))


@pytest.mark.tools
def test_part_is_named_if_the_budget_ends_and_proven_later(tmp_path: Path) -> None:
    made = Repo(tmp_path / "repo")
    parent = made.commit({f"{name}.c": "int z;\n" for name in "abc"})
    culprit = made.commit({f"{name}.c": f"int {name};\n" for name in "abc"})
    spent = Inconclusive((1, 2), (0.5, 0.5), SLOW, Reason.MINUTES_SPENT)
    with partial_diff_commits(open_repository(made.path), parent, culprit, []) as commits:
        search = PartSearch.begin(commits)
        first = search.present
        assert not search.choose_next_round(spent, {}), "no part is named, so the session ends here"
        assert search.present is first
        assert search.choose_next_round(named(2), {})
        proof = search.present
        assert proof.proven == {1} and proof.states[1] == {1}
        assert search.choose_next_round(spent, {}), "the named part is shown"
        assert search.present.states == first.states and search.present.proven == {1}
        assert not search.choose_next_round(named(2), {}), "the session ends"
        assert search.present == proof, "the next session continues with the proof"
        assert search.choose_next_round(named(1), {})
        assert search.present.without == {0, 2}


@pytest.mark.tools
def test_line_of_a_compiler_error_shows_which_part_is_needed(tmp_path: Path) -> None:
    made = Repo(tmp_path / "repo")
    header, user = "struct s {{\n  int {};\n}};\n", "/* a line */\nint f(struct s *p)\n{{\n  return p->{};\n}}\n"
    parent, culprit = (
        made.commit({"a.h": header.format(name), "src/b.c": user.format(name)}) for name in ("old", "fresh")
    )
    with partial_diff_commits(open_repository(made.path), parent, culprit, []) as commits:
        [(_, of_header), (_, of_user)] = sorted((piece.shown.path, at) for at, piece in enumerate(commits.diff.pieces))
        declared, used = frozenset({of_header}), frozenset({of_user})
        no_member = "build/src/b.c:4:11: error: 'struct s' has no member named '{}'"
        assert needs_from_error(commits.diff, declared, no_member.format("old")) == {(of_header, of_user)}
        assert needs_from_error(commits.diff, used, no_member.format("fresh")) == {(of_user, of_header)}
        unquoted = "b.c:4:11: error: request for member in something not a structure or union"
        assert needs_from_error(commits.diff, declared, unquoted) == {(of_header, of_user)}
        assert needs_from_error(commits.diff, declared, "b.c:1:1: error: it is strange") == set()
