"""A built candidate, as visits use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from perfbisect.recipes.builder import Builder


@dataclass(frozen=True, slots=True)
class System:
    """One installed build, prebuilt or not."""

    commit: str  # or the name of prebuilt binaries
    key: str  # of the build
    prefix: PurePosixPath
    builder: Builder  # its recipe, conditions applied
    values: Mapping[str, str | int] = field(default_factory=dict)  # prefix, recipe, commit, version, jobs
    layout: int = 0  # 0: as it was linked; n: linked again in the layout of seed n

    @property
    def library(self) -> PurePosixPath | None:
        """The library that the workload loads; None for a server."""
        return self.prefix / self.builder.library if self.builder.library else None
