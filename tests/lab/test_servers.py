"""Servers: their settings, and how they are started, reached and stopped."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from labs import lab_of, measure, runs, workload_of
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.errors import EnvironmentFailure, RecipeError, RunFailed
from perfbisect.host import jobs, registry
from perfbisect.host.local import LocalHost
from perfbisect.lab import servers
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.servers import (
    FIRST_PORT,
    GRAIN,
    NOBODY,
    Service,
    configuration_text,
    data_owner_id,
    descendants,
    folder_placeholders,
    free_port,
    log_excerpt,
    run_server,
    server_identity,
    size_placeholders,
    user_switch,
)
from perfbisect.recipes.builder import Build, Builder, Server
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import ServerConfig
from postgres import BUILDER, needs_postgres
from repos import Repo

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = f"{HEAD}   0: 0100007F:5B0A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1\n"
TCP6 = f"{HEAD}   0: 00000000000000000000000001000000:5B0B 00000000000000000000000000000000:0000 0A 00000000:00000000\n"


def test_port_processes_and_log_excerpt_are_read_from_outputs() -> None:
    assert FIRST_PORT == 0x5B0A
    assert (free_port(TCP + TCP6), free_port("")) == (FIRST_PORT + 2, FIRST_PORT)
    table = "    1     0\n   10     1\n   11    10\n   12    11\n   13    11\n   99     1\n    5    13\n"
    assert descendants(table, 10) == (11, 12, 13, 5), "parents first"
    assert descendants(table, 99) == ()
    crash = "ready\nmysqld got signal 11 ;\n" + "\n".join(f"please report {n}" for n in range(9))
    for log, excerpt in (
        ("one\n\ntwo\nthree\nfour\n", "two | three | four"),
        ("LOG: bad line 2\nFATAL: no\n", "LOG: bad line 2 | FATAL: no"),
        (crash, "mysqld got signal 11 ; | please report 8"),
        ("", ""),
    ):
        assert log_excerpt(log) == excerpt


def test_too_long_path_of_a_socket_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match=r"too long.*socket"):
        folder_placeholders(LocalHost("here", PurePosixPath("/")), PurePosixPath("/" + "x" * 100))


@pytest.fixture
def host() -> Iterator[LocalHost]:
    """A host whose root has a short path, as a socket needs, and which only this user may enter."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        yield LocalHost("here", PurePosixPath(root))


@pytest.fixture
def lab(host: LocalHost, git: Repo) -> HostLab:
    sha = git.commit({"server.conf": "listen_addresses = ''\nfsync = off\n"})
    workload = workload_of(statement="select pg_sleep(0.02)", operation="query", warmup=0.1, time=1.0)
    return lab_of(host, BUILDER, workload, git.path, (sha,), is_range=False)


@pytest.mark.tools
def test_commands_of_a_server_recipe_run_as_another_user(host: LocalHost) -> None:
    recipe = Server(initialise=[["init"]], start=["serve"], ready=["ask"], refuses_root=True)
    service = Service(host, recipe, {"data": "a b"}, host.root, user_switch(host, recipe))
    both = ["sh", "-c", "echo {data}; echo error >&2"]
    assert service.run(both, "prepare") == "a b\nerror\n"
    assert service.run(both, "prepare", merged=False) == "a b\n"
    user, allowed = service.run(["sh", "-c", "id -u; test -x . && echo yes"], "prepare").split()
    assert user != "0"
    assert allowed == "yes", "access(2) allows the user to enter the root"
    assert data_owner_id(host, recipe) == ""
    for merged in (True, False):
        with pytest.raises(RunFailed, match=r"sh ended with status 3: (out \| )?error") as caught:
            service.run(["sh", "-c", "echo out; echo error >&2; exit 3"], "prepare", merged=merged)
        assert "error" in Path(caught.value.log).read_text()


READY = ["test", "-e", "{data}"]


def served(host: LocalHost, start: str, /, **recipe: Any) -> Service:
    """A server that is a shell script. {data} is a file in the root."""
    usual = {"initialise": [["init"]], "start": ["sh", "-c", start], "ready": READY}
    values = {"log": "none", "data": str(host.root / "file"), "prefix": "/no/such"}
    return Service(host, Server(**usual | recipe), values, host.root)


def live(service: Service) -> None:
    """Initialise, start and stop a server."""
    service.run_all(service.recipe.initialise, "start")
    with run_server(service):
        pass


# The second check for readiness waits for the server: at the first check, the server may not yet run.
AFTER_START = "{{ until [ -e {data} ]; do sleep 0.01; done; echo 'no client library' >&2; }}"
NOT_READY = ["sh", "-c", "mkdir {data}.asked 2>/dev/null || " + AFTER_START + "; exit 1"]
TRAPPED = "trap 'echo PANIC; exit 3' TERM; touch {data}; while :; do sleep 0.1; done"


@pytest.mark.tools
@pytest.mark.parametrize(
    ("start", "ready", "patience", "sentence"),
    [
        ("echo up; touch {data}; exec sleep 60", NOT_READY, 0.3, "not ready within 0.3 s; .*: no client library: up"),
        ("echo no_such; exit 4", ["false"], 0.3, "the server ended with status 4 before it was ready: no_such"),
        (TRAPPED, READY, 600, "ended with status 3 when it was stopped: .*PANIC"),
    ],
)
def test_failed_server_says_why(host: LocalHost, start: str, ready: list[str], patience: float, sentence: str) -> None:
    service = served(host, start, ready=ready, ready_timeout=patience)
    with pytest.raises(RunFailed, match=sentence), run_server(service):
        pass
    assert not jobs.running_jobs(host)


@pytest.mark.tools
def test_missing_program_is_an_error_of_the_build_or_of_the_host(host: LocalHost) -> None:
    """A wait for the missing program would take an hour."""
    usual = {"initialise": [["rm", "-f", "{data}"]], "ready_timeout": 3600, "stop_timeout": 3600}
    for program, kind, sentence in (
        ("{prefix}/bin/program", RunFailed, "/no/such/bin/program"),
        ("no-such-program", EnvironmentFailure, "no-such-program is not installed on host here"),
    ):
        for lacking in ({"initialise": [[program]]}, {"start": [program]}, {"ready": [program]}, {"stop": [program]}):
            with pytest.raises(kind, match=sentence):
                live(served(host, "touch {data}; exec sleep 60", **usual | lacking))
    assert not jobs.running_jobs(host)


@pytest.mark.tools
def test_server_that_is_ended_by_sigterm_is_no_error(host: LocalHost) -> None:
    with run_server(served(host, "touch {data}; exec sleep 1000")) as job:
        assert jobs.status(host, job) is None
    assert not Path(job.folder).exists(), "the folder of the job is removed"


@pytest.mark.tools
def test_all_commands_of_a_server_see_the_same_environment(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    seen = "env | grep -v -e ^_= -e ^PWD= -e ^OLDPWD= -e ^SHLVL= | sort >{data}"
    start = f"trap 'exit 0' TERM; echo $$ >{{data}}; {seen}.start; while :; do sleep 0.1; done"
    commands = {
        "initialise": [["sh", "-c", f"{seen}.initialise"]],
        "ready": ["sh", "-c", f"{seen}.ready; test -s {{data}}.start"],
        "stop": ["sh", "-c", f"{seen}.stop; kill $(cat {{data}})"],
    }
    live(served(host, start, env={"HERE": "{data}"}, **commands))
    found = {file.suffix: file.read_text() for file in Path(host.root).glob("file.*")}
    assert set(found) == {".initialise", ".start", ".ready", ".stop"}
    assert len(set(found.values())) == 1, found
    assert f"HERE={host.root}/file\nHOME=" in found[".stop"]
    assert "PGHOSTADDR" not in found[".stop"]


@pytest.mark.tools
@pytest.mark.skipif(os.getuid() != 0, reason="for root only")
def test_server_that_refuses_root_is_nobody_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """access(2) must allow nobody to read the data, in a root that only this user may read."""
    monkeypatch.setattr(servers, "AS_ANOTHER", ("false",))
    recipe = Server(initialise=[["init"]], start=["serve"], ready=["ask"], refuses_root=True)
    may = [sys.executable, "-c", "import os, sys; print([os.access(path, os.R_OK) for path in sys.argv[1:]])"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        for _ in range(2):  # a new root, and an existing root
            host = registry.connect(HostEntry(name="here", root=f"{folder}/root"))
            (Path(host.root) / "visit").mkdir(exist_ok=True)
            as_nobody = Service(host, recipe, {}, host.root / "visit", user_switch(host, recipe))
            assert as_nobody.run(["id", "-u"], "prepare") == f"{data_owner_id(host, recipe)}\n" == f"{NOBODY}\n"
            paths = [str(host.root / name) for name in ("visit", "jobs", ".")]
            assert as_nobody.run([*may, *paths], "prepare") == "[True, False, False]\n"


@needs_postgres
@pytest.mark.slow
@pytest.mark.dbms
def test_process_that_ends_before_perf_attaches_fails_no_run(lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers of a server may end at any time. The first two lists of pids have a pid without a process."""
    pids, gone = servers.perf_pids, [2**22 + 1] * 2  # larger than any pid
    monkeypatch.setattr(servers, "perf_pids", lambda *of: (*pids(*of), *[gone.pop() for _ in gone[:1]]))
    [run] = runs(measure(lab, PlannedRuns(0, 1)))
    assert not gone
    assert run.counters["task-clock"]


VALUES = size_placeholders(HostEntry(), 1024, 2)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    (tmp_path / "my.cnf").write_text("[mysqld]\nsize = {cache}M\n{settings}\n")
    commands: dict[str, Any] = {"initialise": [["init"]], "start": ["serve"], "ready": ["ask"]}
    server = Server(**commands, config="my.cnf", settings={"a": True, "b": "{memory}M", "c": 0.5})
    build = Build(compile=[["true"]], install=[["true"]], artifacts=["a"])
    return Builder(name="one", folder=str(tmp_path), summary="", driver="mysql", build=build, server=server)


def change(builder: Builder, **changes: object) -> Builder:
    assert builder.server
    return replace(builder, server=replace(builder.server, **changes))


def test_sizes_depend_on_the_memory_of_the_host_and_not_its_kernel() -> None:
    assert size_placeholders(HostEntry(), 31_900, 8) == {"memory": 31_744, "cache": 22_220, "cores": 8}
    assert size_placeholders(HostEntry(), 31_800, 8) == size_placeholders(HostEntry(), 31_900, 8)
    assert size_placeholders(HostEntry(memory=2048, server_cpus="0-2,5"), 31_900, 8) == {
        "memory": 2048,
        "cache": 1433,
        "cores": 4,
    }
    assert size_placeholders(HostEntry(), 0, 1)["memory"] == GRAIN, "if the memory is unknown"


def test_placeholders_of_a_server_configuration_are_filled_in(builder: Builder) -> None:
    """The configuration of the user is at the end."""
    filled = "[mysqld]\nsize = 716M\na = on\nb = {}\nc = 0.5\n"
    assert configuration_text(builder, VALUES) == filled.format("1024M")
    assert configuration_text(change(builder, config=""), VALUES) == ""
    assert configuration_text(replace(builder, server=None), VALUES) == ""
    added = ServerConfig({"b": 2, "d": "x"}, "late = {memory}").applied_to(builder)
    assert configuration_text(added, VALUES) == filled.format(2) + "d = x\n\nlate = 1024\n"
    for other in (added, ServerConfig(text="late = 1").applied_to(builder)):
        assert server_identity(other, VALUES) != server_identity(builder, VALUES)
    Path(builder.folder, "my.cnf").unlink()
    with pytest.raises(RecipeError, match=r'server.config` is "my.cnf", but .* has no such file'):
        configuration_text(builder, VALUES)


def test_identity_of_a_server_depends_on_its_configuration(builder: Builder) -> None:
    identity = server_identity(builder, VALUES)
    assert server_identity(builder, VALUES | {"port": 1, "cores": 8}) == identity, (
        "the port and unused values have no effect"
    )
    assert server_identity(change(builder, ready_timeout=1.0, ready=["other"]), VALUES) == identity
    for other in ({"settings": {"a": False}}, {"settle": [["settle"]]}):
        assert server_identity(change(builder, **other), VALUES) != identity
    assert server_identity(builder, VALUES | {"cache": 700}) != identity
    scripted = change(builder, start=["{recipe}/start"])
    before = server_identity(scripted, VALUES)
    Path(builder.folder, "start").write_text("#!/bin/sh\n")
    assert server_identity(scripted, VALUES) != before
    Path(builder.folder, "my.cnf").write_text("{settings}")
    assert server_identity(builder, VALUES) != identity
