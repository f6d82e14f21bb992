"""The central history in a real PostgreSQL: pushes from local histories, and reading."""

import json
import math
import os
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import sample_hunt as sample
from central import Server, served
from installed_servers import POSTGRES
from perfbisect.core.domain.events import BuildFinished, Decided, RunFinished, SessionEnded, Warned
from perfbisect.core.domain.orders import Belief, Decision, Found, Interval, Step
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store import push as pushing
from perfbisect.store.batches import PlannedHunt, begin_batch, end_batch, update_batch_hunt
from perfbisect.store.central import CentralReader, central_connection, central_primary_key
from perfbisect.store.history import History
from perfbisect.store.push import push
from perfbisect.store.schema import TABLES, VIEWS
from program import exits

pytestmark = [
    pytest.mark.dbms,
    pytest.mark.xdist_group("central"),  # the tests share a server
    pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql"),
]


@contextmanager
def reading(address: str) -> Iterator[CentralReader]:
    """The central history at an address, to be read."""
    with central_connection(address) as connection:
        yield CentralReader(address, connection)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as started:
        yield started


@pytest.fixture
def address(server: Server, request: pytest.FixtureRequest) -> str:
    return server.create("".join(letter for letter in request.node.name.lower() if letter.isalnum())[:60])


def pushed(
    history: History, address: str, origin: str = "desk3", only: int | None = None, running: bool | None = None
) -> pushing.PushResult:
    with central_connection(address) as central:
        return push(history, central, origin, only, is_running=running)


def refused(sentence: str, history: History, address: str, *how: Any) -> str:
    """The advice of the error that refuses a push with ``sentence``."""
    with pytest.raises(UsageError, match=sentence) as wrong:
        pushed(history, address, *how)
    return wrong.value.advice


def rows(address: str, sql: str) -> list[tuple[Any, ...]]:
    with central_connection(address) as central:
        return central.execute(sql.encode()).fetchall()


def cut(wire: socket.socket) -> None:
    """Break a connection, as a failure of the network does."""
    with wire, suppress(OSError):  # the connection has ended already
        wire.shutdown(socket.SHUT_RDWR)


def logs(history: History) -> list[tuple[int, str]]:
    return history.select(
        "SELECT id, body FROM events WHERE session_id IN (SELECT id FROM sessions WHERE origin IS NULL) ORDER BY id"
    )


def same(local: object, there: object) -> bool:
    """Whether a local and a central value are equal. A central number of a session begins with the origin."""
    if isinstance(local, int | float) and not isinstance(there, str) and there is not None:
        return math.isclose(local, there, rel_tol=1e-9)  # type: ignore[arg-type]
    if isinstance(there, str) and there.startswith("{"):
        return json.loads(str(local)) == json.loads(there)
    return local == there or f"desk3:{local}" == there or there == f"desk3:{str(local)[:1]}{str(local)[1:]}"


def test_central_tables_and_views_equal_the_local_history(history: History, address: str) -> None:
    hunt = sample.write(history)
    ways = sample.write_ways(history)
    compared = sample.comparison(2, ["scan", "load"])
    trial = sample.begin_trial(history, compared.request)
    history.append(trial, BuildFinished(0, replace(sample.build(0), phases={"compile": 10.0}), None), 2.0)
    for run in compared.runs:
        history.append(trial, RunFinished(run.subject, run.facts, workload=run.work, round=run.round), run.at)
    history.append(trial, SessionEnded(), 9e3)
    assert pushed(history, address).sessions == 3
    for name in {*TABLES, *VIEWS} - {"batches", "batch_hunts"}:
        columns = [each[0] for each in history.connection.execute(f"SELECT * FROM {name} LIMIT 0").description]
        chosen = [column for column in columns if column not in ("origin", "process")]  # without the secret
        order = (
            central_primary_key(name) if name in TABLES else [str(place + 1) for place in range(min(4, len(chosen)))]
        )
        select = f"SELECT {', '.join(chosen)} FROM {name} ORDER BY {', '.join(order)}"
        local, there = history.select(select), rows(address, select)
        assert len(local) == len(there), name
        for one, other in zip(local, there, strict=True):
            assert all(map(same, one, other)), (name, one, other)
    assert rows(address, "SELECT body::text FROM events ORDER BY id") == [(body,) for _, body in logs(history)]
    [made] = history.trials_except_fitness_checks()
    with reading(address) as central:
        with central.session_copy(f"desk3:{hunt}") as (copy, number, _):
            assert number == hunt
            log = f"SELECT id, at, kind, body FROM events WHERE session_id = {hunt} ORDER BY id"
            assert copy.select(log) == history.select(log)
            assert copy.session_summary(hunt) == replace(history.session_summary(hunt), origin="desk3")
        listed = {str(one.id): one for one in central.hunts_and_trials()}
        assert listed.pop(str(ways)).runs == history.session_summary(ways).runs
        assert listed == {
            "1": replace(history.session_summary(1), origin="desk3"),
            made.id: replace(made, origin="desk3"),
        }
        with central.session_copy(f"desk3:{made.id}") as (copy, name, _):
            there, here = copy.trial(str(name)), history.trial(made.id)
            assert (there.runs, there.request, there.state, there.origin) == (
                here.runs,
                here.request,
                here.state,
                "desk3",
            )


def test_push_sends_only_new_entries(history: History, address: str) -> None:
    hunt = sample.begin(history, sample.SETTINGS)
    with central_connection(address) as central:
        for at, event in sample.events():
            history.append(hunt, event, at)
            push(history, central, "desk3", hunt)
            assert push(history, central, "desk3", hunt, is_running=True).entries == 0
        assert push(history, central, "desk3") == pushing.PushResult(0, 0)
    counts = "SELECT count(*), count(DISTINCT event_id) FROM runs"
    assert rows(address, counts) == history.select(counts)


def test_hunt_is_running_while_its_process_pushes(history: History, address: str) -> None:
    hunt = sample.begin(history, sample.SETTINGS)
    for at, event in list(sample.events())[:20]:
        history.append(hunt, event, at)

    def state(*, running: bool | None) -> str:
        pushed(history, address, running=running)
        with reading(address) as there:
            return there.hunts_and_trials()[0].state

    assert [state(running=each) for each in (True, False, True)] == ["running", "interrupted", "running"]
    assert pushed(history, address) == pushing.PushResult(0, 0)  # this process works on the hunt
    assert state(running=True) == "running"
    rows(address, "UPDATE pushes SET seen = seen - 1000 RETURNING 1")
    with reading(address) as there:
        assert there.hunts_and_trials()[0].state == "interrupted"


def test_comparison_of_good_with_the_merge_base_lists_no_culprit(history: History, address: str) -> None:
    hunt, step = sample.begin(history, sample.SETTINGS), Step(1, 0.99, Interval(0.7, 0.8, 0.9), (0,))
    compared = replace(sample.started(sample.CANDIDATES[:2]), of_merge_base=True)
    found = Decided(Decision(Found(step), Belief(np.array([0.0, 1.0]), 0.9, 0.01, step.ratio)))
    for event in (sample.started(), compared, found):
        history.append(hunt, event, 5.0)
    pushed(history, address, running=True)
    with reading(address) as central:
        [listed] = central.hunts_and_trials()
    assert (listed.state, listed.culprit) == ("running", None)


def test_passwords_are_not_pushed(history: History, address: str) -> None:
    secret = "https://me:hunter2@cache.example/x?token=abcdef"
    settings = replace(sample.SETTINGS, configure=(f"--with={secret}", 'say "quoted"'), repository=f"/src/{secret}")
    hunt = sample.begin(history, settings)
    history.append(hunt, Warned(f"unreachable: {secret}"), 3.0)
    history.enter_failure(hunt, f"no way to {secret}", 4.0)
    pushed(history, address)
    everything = [str(row) for table in TABLES for row in rows(address, f"SELECT * FROM {table}")]
    assert not [row for row in everything if "hunter2" in row or "abcdef" in row]
    assert any("***@cache.example" in row for row in everything)
    [(stored,)] = rows(address, "SELECT settings FROM sessions")
    assert json.loads(stored)["configure"][1] == 'say "quoted"'


def test_batch_end_is_pushed(history: History, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = begin_batch(history, Path("hunts.toml"), [PlannedHunt(("v1", "v2"), "/src", ())], 1.0)
    update_batch_hunt(history, batch, 0, hunt_id=sample.write(history))
    pushed(history, address)
    end_batch(history, batch, 9.0)
    pushed(history, address)
    assert rows(address, "SELECT id, ended FROM batches") == [(f"desk3:{batch}", 9.0)]
    assert exits(0, "show", "desk3:b1", "--from", address).startswith("Batch desk3:b1 of hunts.toml")
    folder = tmp_path / "batch-desk3:1"
    monkeypatch.chdir(tmp_path)
    assert exits(0, "report", "desk3:b1", "--from", address) == f"{folder.name}/index.html\n"
    assert (folder / "hunt-1.html").exists()


def test_second_history_with_the_same_name_is_refused(history: History, address: str, tmp_path: Path) -> None:
    sample.write(history)
    pushed(history, address)
    with closing(History.open(tmp_path / "other.db")) as other:
        sample.write(other)
        refused("another session with the id desk3:1", other, address)
        later = sample.write(other)  # its number is free in the central history
        advice = refused("another history with the name desk3", other, address, "desk3", later)
        assert 'origin = "NAME" in [central] of config.toml' in advice
        assert pushed(other, address, "desk4").sessions == 2
    assert len(rows(address, "SELECT 1 FROM sessions")) == 3


def test_history_is_not_pushed_with_a_second_name(history: History, address: str, tmp_path: Path) -> None:
    sample.write(history)
    pushed(history, address)
    history.connection.execute("VACUUM INTO ?", [str(tmp_path / "copy.db")])
    for only in (None, sample.write(history)):
        assert 'origin = "desk3"' in refused(
            "was pushed before with the name desk3, not desk9", history, address, "desk9", only
        )
    assert pushed(history, address).sessions == 1
    with closing(History.open(tmp_path / "copy.db")) as copy:
        sample.write(copy)
        refused("another session with the id desk3:2", copy, address)
        assert pushed(copy, address, "desk4").sessions == 1  # the shared session is there already
    assert rows(address, "SELECT id FROM sessions ORDER BY id") == [("desk3:1",), ("desk3:2",), ("desk4:2",)]


def test_damaged_session_is_named_and_other_sessions_are_pushed(history: History, address: str) -> None:
    first, second = sample.write(history), sample.write(history)
    history.connection.execute("UPDATE events SET body = '{' WHERE id = (SELECT min(id) + 3 FROM events)")
    done = pushed(history, address)
    assert done.sessions == 1
    assert done.refused[0].startswith(f"desk3:{first} is damaged: ")
    assert rows(address, "SELECT DISTINCT session_id FROM events") == [(f"desk3:{second}",)]


def test_invalid_values_are_refused_and_invalid_rows_hide_no_others(history: History, address: str) -> None:
    """Invalid rows may be in a central history that is older than the checks."""
    for _ in range(3):
        sample.write(history)
    pushed(history, address)
    odd = ("started = 'infinity'", "started = 'NaN'", "started = -1", "kind = 'x'", "id = 'desk3'", "noise = 'NaN'")
    updates = [f"UPDATE perfbisect.sessions SET {each} WHERE id = 'desk3:1'".encode() for each in odd]
    for update in updates:
        with psycopg.connect(address) as there, pytest.raises(psycopg.errors.CheckViolation):
            there.execute(update)
    with psycopg.connect(address) as there:
        checks = "SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0"
        for name, table in there.execute(f"{checks} AND connamespace = 'perfbisect'::regnamespace".encode()).fetchall():
            there.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
        there.execute(updates[0])
    with reading(address) as central:
        assert {one.id for one in central.hunts_and_trials() if one.state == "damaged"} == {1}
        with (
            pytest.raises(EnvironmentFailure, match=r"127\.0\.0\.1"),
            central.session_copy("desk3:1") as (copy, one, _),
        ):
            copy.session_summary(int(one))


def test_roles_limit_reading_and_pushing(history: History, server: Server, address: str) -> None:
    sample.write(history)
    database = address.rpartition("/")[2]
    with psycopg.connect(address, autocommit=True) as admin:
        for user, role in (("appends", "perfbisect_append"), ("reads", "perfbisect_read"), ("nobody", "")):
            admin.execute(f"CREATE ROLE {user} LOGIN {f'IN ROLE {role}' if role else ''}".encode())
    advice = refused("refuses the operation: permission denied", history, server.address(database, "reads"))
    assert "GRANT perfbisect_append TO" in advice
    pushed(history, server.address(database, "appends"))
    history.append(1, Warned("more"), 9e9)
    assert pushed(history, server.address(database, "appends")).entries == 1
    with reading(server.address(database, "reads")) as central:
        assert len(central.hunts_and_trials()) == 1
        answer = central.query("select culprit from culprits")
        assert answer.columns == ("culprit",)
        assert len([*answer.rows]) == 1
        for sql, why, advice in (
            ("delete from events", "only reads", ""),
            ("select * from culpit", 'relation "culpit" does not exist', ""),
            ("select * from culprits where hunt_id = 1", "text = integer", "hunt_id = 'ORIGIN:12'"),
            ("select pg_read_file('/etc/passwd')", "permission denied", ""),
        ):
            with pytest.raises(UsageError, match=why) as wrong:
                central.query(sql)
            assert advice in wrong.value.advice
            assert "GRANT" not in wrong.value.advice
    for statement in ("DELETE FROM events", "UPDATE events SET at = 0", "DELETE FROM sessions", "DROP TABLE runs"):
        with (
            pytest.raises(UsageError, match="refuses the operation"),
            central_connection(server.address(database, "appends")) as central,
        ):
            central.execute(statement.encode())
    with pytest.raises(UsageError, match="Your user may not read"), reading(server.address(database, "nobody")):
        pass


def test_wrong_address_is_an_error_without_the_password(server: Server) -> None:
    secrets = ("hunter%zz", "hun/hunter", "hun@hunter:hunter")
    for address, error, sentence, advice in (
        (server.address("postgres"), UsageError, "has no central history", "bisect push --sql"),
        ("postgresql://127.0.0.1:1/x", EnvironmentFailure, "cannot be reached", ""),
        ("mysql://here/x", UsageError, "is not an address", ""),
        *((f"postgresql://me:{each}@127.0.0.1:1/x", UsageError, "is not an address", "") for each in secrets),
    ):
        with pytest.raises(error, match=sentence) as wrong, central_connection(address):
            pass
        assert advice in wrong.value.advice
        assert "hunter" not in f"{wrong.value} {wrong.value.advice}"


def test_reader_sees_the_state_of_one_moment(history: History, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hunt = sample.begin(history, sample.SETTINGS)
    later = [*sample.events()]
    pushed(history, address, running=True)
    rows_of = CentralReader._select

    def pushed_meanwhile(central: CentralReader, *how: Any) -> list[tuple[Any, ...]]:
        found = rows_of(central, *how)
        while later:
            at, event = later.pop(0)
            history.append(hunt, event, at)
        pushed(history, address)
        return found

    monkeypatch.setattr(CentralReader, "_select", pushed_meanwhile)
    with reading(address) as central:
        [listed] = central.hunts_and_trials()
        assert (listed.state, listed.probability) == ("running", None)
    assert rows(address, "SELECT kind FROM verdicts") == [("Found",)]


@pytest.mark.slow
def test_concurrent_pushes_survive_cut_connections_and_restarts(
    path: Path, server: Server, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty sessions, half of them of one history. At random times, connections break and the server restarts."""
    monkeypatch.setattr(pushing, "ENTRIES", 7)
    events = [*sample.events(), *((at + 1, Warned(f"warning {at}")) for at, _ in sample.events())]
    one, ends = tmp_path / "one.db", threading.Event()
    History.open(one).close()

    def hunt(number: int) -> None:
        mine, origin = (one, "one") if number % 2 else (tmp_path / f"{number}.db", f"h{number}")
        chance = random.Random(number)
        with closing(History.open(mine)) as history:
            session = sample.begin(history, sample.SETTINGS)
            for at, event in events:
                history.append(session, event, at)
                if chance.random() < 0.3:
                    with suppress(EnvironmentFailure), central_connection(address) as central:
                        if chance.random() < 0.3:  # as if the process was killed or the network failed
                            wire = socket.socket(fileno=os.dup(central.fileno()))
                            threading.Timer(chance.random() / 50, cut, [wire]).start()
                        push(history, central, origin, session)

    def disturb() -> None:
        while not ends.wait(1.0):
            server.control("-m", "immediate", "restart")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(hunt, range(20)))
    ends.set()
    disturber.join()
    counted = "SELECT count(*) FROM runs"
    for mine, origin in [(one, "one"), *((tmp_path / f"{number}.db", f"h{number}") for number in range(0, 20, 2))]:
        with closing(History.open(mine, read_only=True)) as history, central_connection(address) as central:
            assert not push(history, central, origin).refused
            select = "SELECT id, body FROM events WHERE session_id LIKE %s ORDER BY id"
            assert central.execute(select, [f"{origin}:%"]).fetchall() == logs(history)
            there = central.execute(f"{counted} WHERE session_id LIKE %s".encode(), [f"{origin}:%"]).fetchall()
            assert there == history.select(counted)
    assert len(rows(address, "SELECT 1 FROM sessions")) == 20
