"""Data of earlier hunts that the next hunt uses: costs, failures, noise, and keys of builds and datasets."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished, SessionEnded
from perfbisect.core.domain.orders import Interval, NotReproduced
from perfbisect.core.domain.settings import QuickCommand, Settings
from perfbisect.core.stats.noise import LEAST
from perfbisect.hunt.lifecycle import REMEMBERED, known_failures
from perfbisect.hunt.session import with_prior_knowledge
from perfbisect.store.history import History
from perfbisect.store.prior_data import (
    RECENT,
    TypicalCosts,
    latest_build_and_dataset_keys,
    read_failed_builds,
    read_fitness_checks,
    read_needed_keys,
    read_run_noise,
    read_typical_costs,
    unused_command_name,
)

OTHERS = [
    replace(sample.SETTINGS, host="other"),
    replace(sample.SETTINGS, builder="other"),
    replace(sample.SETTINGS, variant="lto"),
]


def test_typical_costs_are_of_the_same_host_build_workload_and_args(sampled: History) -> None:
    """Overridden args are compared, too."""
    assert read_typical_costs(sampled, sample.SETTINGS) == TypicalCosts(7.5, 12.5)
    for other in OTHERS:
        assert read_typical_costs(sampled, other) == TypicalCosts(None, None)
    for change in ({"workload": "scan"}, {"overrides": {"time": 60}}):
        assert read_typical_costs(sampled, replace(sample.SETTINGS, **change)) == TypicalCosts(7.5, None)  # type: ignore[arg-type]
    given = {"time": 5, "covered": True, "keys": 'ä"\\/', "rate": 0.5, "table-size": 7}
    asked = replace(sample.SETTINGS, overrides=given)
    sampled.append(sample.begin(sampled, asked), RunFinished(0, sample.run(0, 0.0)), 12.0)
    assert read_typical_costs(sampled, replace(asked, good="v0")).run_seconds is not None
    assert read_typical_costs(sampled, replace(asked, overrides=given | {"table-size": 8})).run_seconds is None


def test_sessions_of_other_users_are_not_used(sampled: History) -> None:
    """A history may have hunts and trials of another user beside own hunts."""
    hunt = sample.begin(sampled)
    sampled.append(hunt, CandidateSkipped(3, sample.skip(3)), 1.0)
    assert read_failed_builds(sampled, sample.SETTINGS, 0.0) and sampled.latest_hunt() == hunt
    sampled.connection.execute("UPDATE attempts SET process = 'anna@desk:1 x 1 1 1'")
    own = sample.begin(sampled)
    sample.begin(sampled)
    sampled.connection.execute("UPDATE attempts SET process = CAST(x'ff' AS TEXT) WHERE session_id > ?", [own])
    assert read_typical_costs(sampled, sample.SETTINGS) == TypicalCosts(None, None) and sampled.latest_hunt() == own
    assert (
        not read_failed_builds(sampled, sample.SETTINGS, 0.0)
        and not latest_build_and_dataset_keys(sampled, sample.SETTINGS)[0]
    )
    assert read_run_noise(sampled, sample.SETTINGS) is None and read_fitness_checks(sampled) == {}


def test_second_command_with_the_same_name_gets_a_number(history: History) -> None:
    """Noise and costs are looked up by name. A repeated command gets its old name again, whatever it builds."""
    commands = [
        QuickCommand("./match", ("make",), "x: (.*)"),
        QuickCommand("match", (), "x: (.*)"),
        QuickCommand("./match", None, "(.*) s"),
    ]
    for quick, name in zip(commands, ("match", "match 2", "match 3"), strict=True):
        assert unused_command_name(history, quick, "match") == name
        sample.begin(history, replace(sample.SETTINGS, workload=name, quick=replace(quick, name=name)))
    again = [
        unused_command_name(history, replace(quick, build=(), name="", unit="MB/s"), "match") for quick in commands
    ]
    assert again == ["match", "match 2", "match 3"]


def test_failures_are_remembered_until_the_commit_builds(history: History) -> None:
    hunt, failed = sample.begin(history), {at: sample.skip(3 + at % 2, reason=f"at {at}") for at in (1, 2, 3)}
    for at, skip in failed.items():
        history.append(hunt, CandidateSkipped(3 + at % 2, skip), float(at))
    history.append(hunt, CandidateSkipped(5, sample.skip(5, "run")), 4.0)
    assert read_failed_builds(history, sample.SETTINGS, 0.0) == (failed[2], failed[3])
    assert read_failed_builds(history, sample.SETTINGS, 2.5) == (failed[3],)
    for other in (*OTHERS, replace(sample.SETTINGS, build_hash="of another recipe")):
        assert read_failed_builds(history, other, 0.0) == ()
    history.append(hunt, BuildFinished(4, sample.build(4), None), 5.0)
    assert read_failed_builds(history, sample.SETTINGS, 0.0) == (failed[2],)


def test_builds_on_build_hosts_count_for_the_measuring_host(history: History) -> None:
    hunt = sample.begin(history, replace(sample.SETTINGS, further_hosts=("second",)))
    for at, name in enumerate(("b1", "second")):
        history.append(hunt, CandidateSkipped(3 + at, sample.skip(3 + at), name), float(at))
        history.append(hunt, BuildFinished(5 + at, sample.build(5 + at, seconds=100.0 + at), None, name), 2.0 + at)
    assert read_failed_builds(history, sample.SETTINGS, 0.0) == (sample.skip(3),)
    assert read_typical_costs(history, sample.SETTINGS).build_seconds == 100.0
    assert read_typical_costs(history, replace(sample.SETTINGS, host="second")).build_seconds == 101.0
    assert latest_build_and_dataset_keys(history, sample.SETTINGS)[0] == {sample.build(5).key}


def test_remembered_failure_does_not_extend_its_time(history: History) -> None:
    for at, seconds in ((1.0, 4.0), (9.0, 0.0)):
        hunt = sample.begin(history)
        history.append(hunt, CandidateSkipped(3, replace(sample.skip(3), seconds=seconds)), at)
    [failed] = read_failed_builds(history, sample.SETTINGS, 0.5)
    assert failed.seconds == 4.0
    assert read_failed_builds(history, sample.SETTINGS, 5.0) == ()


@pytest.mark.parametrize("noise", [0.003, 0.03])
def test_noise_of_a_run_excludes_drift_and_outliers(history: History, noise: float) -> None:
    chance = random.Random(3)
    hunt = sample.begin(history)
    for turn in range(48):
        drift = 0.02 * math.sin(turn / 40)
        wild = -1.0 if turn % 20 == 7 else 0.0
        qps = 20_000 * math.exp(drift + wild + chance.gauss(0, noise)) * (0.5 if turn % 2 else 1.0)
        history.append(hunt, RunFinished(turn % 2, sample.run(turn % 2, 20.0 * turn, qps=qps)), 20.0 * turn + 12)
    assert read_run_noise(history, sample.SETTINGS) == pytest.approx(noise, rel=0.35)
    assert read_run_noise(history, replace(sample.SETTINGS, metric="instructions/o")) == LEAST
    assert read_run_noise(history, replace(sample.SETTINGS, metric="p99")) is None


def test_needed_keys_are_of_unfinished_hunts_only(sampled: History) -> None:
    keys, _ = latest_build_and_dataset_keys(sampled, sample.SETTINGS)
    assert keys and all(key.startswith("key-") for key in keys)
    assert latest_build_and_dataset_keys(sampled, OTHERS[1]) == (frozenset(), frozenset())
    hunt = sample.begin(sampled, at=5000.0)
    sampled.append(hunt, RunFinished(1, replace(sample.run(1, 5010.0), dataset="data-2")), 5020.0)
    sampled.append(hunt, BuildFinished(1, replace(sample.build(1), key="mine"), None), 5030.0)
    used = {"mine", "data-2", sample.build(1).key}
    assert read_needed_keys(sampled, 0.0) == read_needed_keys(sampled, 5025.0) == used
    assert read_needed_keys(sampled, 6000.0) == frozenset()
    sampled.append(hunt, SessionEnded(NotReproduced(Interval(0.9, 1.0, 1.1), 0.01)), 5040.0)
    assert read_needed_keys(sampled, 0.0) == frozenset()


def test_new_host_uses_data_of_its_host_class(sampled: History) -> None:
    def on(*classes: str) -> Settings:
        prior = replace(sample.SETTINGS.prior, host_classes=classes)
        return replace(sample.SETTINGS, host="new", further_hosts=("local",), prior=prior)

    before = with_prior_knowledge(sampled, sample.SETTINGS).prior
    assert before.build_cost == pytest.approx(7.5 / 12.5)
    after = with_prior_knowledge(sampled, on("c8", "c8"))
    assert (after.prior.build_cost, after.prior.noise) == (before.build_cost, before.noise)
    assert after.hosts == ("new", "local")
    [failed] = known_failures(sampled, on("c8", "c8"), sample.BEGAN + 1000)
    assert failed.commit == sample.CANDIDATES[4]
    assert known_failures(sampled, sample.SETTINGS, sample.BEGAN + 1000 + REMEMBERED) == (), "forgotten in the end"
    for classes in (("c8", "arm"), ()):  # (): classes that are not read yet
        assert with_prior_knowledge(sampled, on(*classes)) == on(*classes)
    assert known_failures(sampled, on("c8", "arm"), sample.BEGAN + 1000) == ()


# The work of reads and writes does not grow with the history. It is counted in steps of SQLite's virtual machine.

MANY = 20  # hunts


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[History, History]]:
    """A history with one hunt, and one with many, of which the last has the most runs."""
    folder = tmp_path_factory.mktemp("sizes")
    with closing(History.open(folder / "one.db")) as one, closing(History.open(folder / "many.db")) as many:
        for history, hunts in ((one, 1), (many, MANY)):
            with history.transaction():
                for _ in range(hunts):
                    sample.write(history)
        with many.transaction():
            for number in range(150):
                at = sample.BEGAN + 1e6 + 20 * number
                many.append(MANY, RunFinished(1, sample.run(1, at)), at + 10)
        yield one, many


def steps(history: History, work: Callable[[History], object]) -> int:
    """The steps of ``work``, whose statements have been prepared by an earlier call."""
    work(history)
    counted = count()
    history.connection.set_progress_handler(lambda: next(counted) < 0, 10)
    try:
        work(history)
        return next(counted)
    finally:
        history.connection.set_progress_handler(None, 0)


def test_cost_of_adding_a_run_does_not_grow_with_history_or_hunt(sizes: tuple[History, History]) -> None:
    times = count(int(sample.BEGAN + 1e7), 20)

    def add(history: History, hunt: int) -> None:
        at = float(next(times))
        history.append(hunt, RunFinished(1, sample.run(1, at)), at + 10)

    first, later = (steps(history, partial(add, hunt=hunt)) for history, hunt in zip(sizes, (1, MANY), strict=True))
    assert first > 0 and later <= 1.1 * first


QUERIES = (
    "select * from rqps where hunt_id = 1",
    "select * from candidates where hunt_id = 1 and skipped is not null",
    "select * from runs where session_id = 1 order by started",
    "select node, avg(value) from counters join runs on event_id = run_id where session_id = 1 and name = 'cycles' group by 1",
)


def test_queries_about_a_hunt_read_only_that_hunt(sizes: tuple[History, History]) -> None:
    one, many = sizes
    for sql in QUERIES:
        found, most = (steps(history, lambda history, sql=sql: history.select(sql)) for history in (many, one))
        assert found <= 1.5 * most + 50, sql


def test_listing_of_hunts_does_not_read_runs(sizes: tuple[History, History]) -> None:
    one, many = sizes
    before = steps(many, History.hunts)
    assert before <= 1.2 * MANY * steps(one, History.hunts) + 50
    assert [hunt.runs for hunt in many.hunts()][:2] == [16, 16]
    [(runs,)] = many.select("select count(*) from runs where session_id = ?", [MANY])
    assert many.session_summary(MANY).runs == runs


@pytest.mark.slow
def test_new_hunt_reads_only_the_latest_runs(history: History) -> None:
    """If the latest hunts have enough runs, the number of earlier runs does not matter."""

    def read(history: History) -> object:
        return [
            each(history, sample.SETTINGS)
            for each in (read_run_noise, read_typical_costs, latest_build_and_dataset_keys)
        ]

    found = []
    for later in (0.0, 1e6):
        with history.transaction():
            for _ in range(2):
                hunt = sample.begin(history, at=sample.BEGAN + later)
                for number in range(5 * RECENT):
                    at = sample.BEGAN + later + 20 * number
                    history.append(hunt, RunFinished(1, sample.run(1, at)), at + 10)
        found.append(steps(history, read))
    assert found[1] <= 1.3 * found[0]
