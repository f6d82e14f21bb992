"""A repository, hosts and a recipe for tests that build commits; and a server of objects over HTTP."""

import base64
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from socket import socket
from typing import Any

import msgspec
import pytest

from installed_servers import recipe
from machine import here
from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Patch
from perfbisect.host import ssh
from perfbisect.host.local import LocalHost
from perfbisect.lab.building import build_store, checkout
from perfbisect.lab.building.pipeline import build_commit, build_context
from perfbisect.lab.building.plan import BuildContext, InstalledBuild, build_key
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.building.toolchain import Toolchain
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository
from repos import Files, Repo
from shelf import Quiet, serving
from waiting import finish

TINY = recipe("tiny", "")


def tiny(value: int) -> Files:
    """The tree of a program that exits with the status ``value``."""
    main = "int one(void);\nint main(void) { return one(); }\n"
    return {"main.c": main, "one.c": f"int one(void) {{ return {value}; }}\n"}


def key_of_build(
    builder: Builder, variant: Variant, tools: Toolchain, system: str = "", host: LocalHost | None = None
) -> str:
    """The key of a build on any host."""
    unused: Any = None
    context = BuildContext(host or unused, unused, builder, "", variant, tools, unused, unused)
    return build_key(context, "tree", (), "sha", system)


@dataclass
class Yard:
    """Builds commits of ``git`` on hosts. The root folder of a host is ``folder/NAME``; default: ``here``."""

    folder: Path
    git: Repo
    recipe: Builder = TINY
    jobs: int = 1

    def __post_init__(self) -> None:
        (self.folder / "recipe").mkdir()
        self.recipe = msgspec.structs.replace(self.recipe, folder=str(self.folder / "recipe"))

    @property
    def host(self) -> LocalHost:
        return self.on("here")

    @property
    def root(self) -> Path:
        return Path(self.host.root)

    def on(self, name: str) -> LocalHost:
        return here(self.folder / name, name)

    def context(
        self, variant: str = "", *patches: Patch,
        on: str = "here", layouts: bool = False, remote: str = "", **changes: Any,
    ) -> BuildContext:  # fmt: skip
        """The context of a build; ``changes`` are fields of the recipe."""
        host, repository = self.on(on), open_repository(self.git.path)
        recipe = msgspec.structs.replace(self.recipe, **changes)
        bare = finish(checkout.bring_mirror(host, repository, recipe.work_name, []))[1]
        entry = HostEntry(name=on, jobs=self.jobs, ccache_remote=remote)
        made = build_context(host, entry, recipe, variant, bare, repository, layouts=layouts)
        return replace(made, patches=patches)

    def obtain(
        self, on: str, shared: SharedBuilds | None, sha: str, context: BuildContext | None = None, **more: Any
    ) -> tuple[InstalledBuild, list[str]]:
        """A build on the host ``on``, and the warnings."""
        steps, built = finish(build_commit(context or self.context(on=on, **more), sha, shared))
        return built, [step.text for step in steps if isinstance(step, Warned)]

    def build(self, what: str | Files, variant: str = "", **more: Any) -> BuildFacts:
        """Build a commit, or commit files first."""
        sha = what if isinstance(what, str) else self.git.commit(what)
        return self.obtain("here", None, sha, self.context(variant, **more))[0].facts

    def installed(self, key: str, path: str = "") -> Path:
        return Path(build_store.prefix_folder(self.host, key) / path)

    def output(self, key: str, program: str) -> str:
        """The output of an installed program, run from the folder in which it is measured."""
        fixed = build_store.symlink_build(self.host, self.recipe.work_name, key)
        return subprocess.run([fixed / program], capture_output=True, text=True, check=True).stdout.strip()


def break_stream(monkeypatch: pytest.MonkeyPatch, to_host: bool, lose: Callable[[], object], pieces: int = 1) -> None:
    """Call ``lose`` after ``pieces`` pieces of the next stream over SSH to the host, or from the host."""
    whole, left = ssh.copy_stream, count(pieces, -1)

    def counted(act: Callable[[Any], object]) -> Callable[[Any], object]:
        def once(given: Any) -> object:
            if next(left) == 0:
                lose()
            return act(given)

        return once

    def broken(read: Any, write: Any, *closing: Any) -> None:
        end = read if to_host else write
        if not isinstance(getattr(end, "__self__", None), socket):  # the other direction, or no stream
            return whole(read, write, *closing)
        monkeypatch.setattr(ssh, "copy_stream", whole)
        return whole(read, counted(write), *closing) if to_host else whole(counted(read), write, *closing)

    monkeypatch.setattr(ssh, "copy_stream", broken)


@dataclass
class ObjectServer:
    """The objects of a server, and the requests that it has got."""

    address: str = ""
    kept: dict[str, bytes] = field(default_factory=dict)  # by path
    asked: list[str] = field(default_factory=list)  # methods
    fails: Callable[[str], int] = lambda method: 0  # method → the status of an error; 0: none
    stop: Callable[[], None] = lambda: None


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    state = ObjectServer()
    login = "Basic " + base64.b64encode(b"user:secret").decode()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def answer_any(self) -> None:
            state.asked.append(self.command)
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:  # cut off
                self.close_connection = True
            elif status := state.fails(self.command) or (401 if self.headers["Authorization"] != login else 0):
                self.answer(status)
            elif self.command == "PUT":
                state.kept[self.path] = body
                self.answer(201)
            elif self.path not in state.kept:
                self.answer(404)
            elif self.command == "DELETE":
                del state.kept[self.path]
                self.answer(204)
            else:
                self.answer(200, state.kept[self.path])

        do_GET = do_HEAD = do_PUT = do_DELETE = answer_any

    with serving(Handler) as server:

        def stop() -> None:
            server.shutdown()
            server.server_close()

        state.address, state.stop = f"http://user:secret@127.0.0.1:{server.server_port}", stop
        yield state
