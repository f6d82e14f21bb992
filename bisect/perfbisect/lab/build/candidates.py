"""The candidates of a lab: what is built and measured, by number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.patch import Patch
from perfbisect.lab.build.plan import Built
from perfbisect.repository.git import Repository


@dataclass(frozen=True, slots=True)
class Candidates:
    """A commit for each candidate; for prebuilt binaries the name that the user gave them."""

    repository: Repository | None  # None where no candidate has to be built
    commits: tuple[str, ...]
    describe: Callable[[str], Commit]  # date, author and title of a commit
    ends: Mapping[str, str] = field(default_factory=dict)  # commit → its name in a message: "the good end"
    prebuilt: Mapping[int, Built] = field(default_factory=dict)  # candidate → what needs no building
    patches: tuple[Patch, ...] = ()  # for each that they apply to
    layouts: Mapping[int, int] = field(
        default_factory=dict
    )  # candidate → seed of the one layout in which it is measured
    is_range: bool = True  # nothing can be measured without the first and the last; otherwise each is independent

    def name(self, candidate: int) -> str:
        """The name of a candidate in a message."""
        commit = self.commits[candidate]
        return commit if candidate in self.prebuilt else commit[:10]

    def sha(self, candidate: int) -> str:
        """The hash of a candidate's commit; "" for prebuilt binaries."""
        return "" if candidate in self.prebuilt else self.commits[candidate]

    def end(self, candidate: int) -> str:
        """The name of the end of the range that a candidate is; "" for every other candidate."""
        if not self.is_range or candidate not in (0, len(self.commits) - 1):
            return ""
        return self.ends.get(self.commits[candidate], "an end of the range")

    def tips(self) -> Sequence[str]:
        """The commits from which all commits to build can be reached."""
        commits = [commit for candidate, commit in enumerate(self.commits) if candidate not in self.prebuilt]
        return [commits[0], commits[-1]] if commits and self.is_range else commits
