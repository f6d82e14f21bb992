"""Hosts that share the builds of a small program."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from generators import finish
from perfbisect.core.domain.events import Warned
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.pipeline import build_context
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.lab.build.shared_builds import SharedBuilds, obtain
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository

Git = Callable[..., str]

RECIPE = Builder(
    name="tiny",
    summary="a tiny program",
    driver="tiny",
    variants={"o2nofp": Variant(cflags="-O2"), "native": Variant(cflags="-O2 -march=native")},
    build=Build(
        compile=[
            ["sh", "-c", "for unit in main one; do $CC {cflags} -c {source}/$unit.c -o $unit.o || exit; done"],
            ["sh", "-c", "$CC main.o one.o -o tiny"],
        ],
        install=[["sh", "-c", "mkdir -p {prefix}/bin && cp tiny {prefix}/bin && ln -s tiny {prefix}/bin/small"]],
        artifacts=["bin/tiny"],
        env={"CC": "{cc}"},
        timeout=60.0,
    ),
)


@dataclass
class Fleet:
    """A repository, and hosts with folders of their own."""

    folder: Path
    git: Git

    def commit(self, value: int) -> str:
        repo = self.folder / "repo"
        (repo / "main.c").write_text("int one(void);\nint main(void) { return one(); }\n")
        (repo / "one.c").write_text(f"int one(void) {{ return {value}; }}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def context(
        self, name: str, *, layouts: bool = False, variant: str = "", remote: str = "", **changes: object
    ) -> BuildContext:
        root = self.folder / name
        root.mkdir(exist_ok=True)
        host, repository = LocalHost(name, PurePosixPath(root)), open_repository(self.folder / "repo")
        bare = finish(checkout.mirror(host, repository, "tiny", []))[1]
        recipe = msgspec.structs.replace(RECIPE, folder=str(self.folder / "recipe"), **changes)
        return build_context(
            host, HostEntry(name=name, jobs=1, ccache_remote=remote), recipe, variant, bare, repository, layouts=layouts
        )

    def obtain(
        self, name: str, shared: SharedBuilds | None, sha: str, context: BuildContext | None = None, **more: object
    ) -> tuple[Built, list[str]]:
        """A build on the host of that name, and the warnings."""
        steps, built = finish(obtain(shared, context or self.context(name, **more), sha))  # type: ignore[arg-type]
        return built, [step.text for step in steps if isinstance(step, Warned)]
