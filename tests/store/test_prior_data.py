"""Data of earlier hunts, and what the next one begins with therefore."""

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


def test_costs_are_those_of_the_same_host_builder_variant_workload_and_args(sampled: History) -> None:
    """Args that were set are known again."""
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


def test_nothing_that_others_measured_is_believed(sampled: History) -> None:
    """In a file of theirs, to which own hunts may be added, and in a night of theirs, with which none goes on."""
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


def test_another_command_of_a_name_has_a_number(history: History) -> None:
    """Names are what remembered noise and costs are looked up by. The same command has its name again, whatever it builds."""
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


def test_what_was_built_ahead_is_known_of_the_host_that_measures(history: History) -> None:
    hunt = sample.begin(history, replace(sample.SETTINGS, further_hosts=("second",)))
    for at, name in enumerate(("b1", "second")):
        history.append(hunt, CandidateSkipped(3 + at, sample.skip(3 + at), name), float(at))
        history.append(hunt, BuildFinished(5 + at, sample.build(5 + at, seconds=100.0 + at), None, name), 2.0 + at)
    assert read_failed_builds(history, sample.SETTINGS, 0.0) == (sample.skip(3),)
    assert read_typical_costs(history, sample.SETTINGS).build_seconds == 100.0
    assert read_typical_costs(history, replace(sample.SETTINGS, host="second")).build_seconds == 101.0
    assert latest_build_and_dataset_keys(history, sample.SETTINGS)[0] == {sample.build(5).key}


def test_a_failure_that_is_only_remembered_does_not_begin_its_time_anew(history: History) -> None:
    for at, seconds in ((1.0, 4.0), (9.0, 0.0)):
        hunt = sample.begin(history)
        history.append(hunt, CandidateSkipped(3, replace(sample.skip(3), seconds=seconds)), at)
    [failed] = read_failed_builds(history, sample.SETTINGS, 0.5)
    assert failed.seconds == 4.0
    assert read_failed_builds(history, sample.SETTINGS, 5.0) == ()


@pytest.mark.parametrize("noise", [0.003, 0.03])
def test_noise_is_that_of_a_run_without_the_drift(history: History, noise: float) -> None:
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


def test_unfinished_hunts_pin_what_they_use_and_others_keep_what_they_built(sampled: History) -> None:
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


def test_a_new_host_knows_what_a_host_of_its_class_knows(sampled: History) -> None:
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
    for classes in (("c8", "arm"), ()):  # the latter before they are read
        assert with_prior_knowledge(sampled, on(*classes)) == on(*classes)
    assert known_failures(sampled, on("c8", "arm"), sample.BEGAN + 1000) == ()


# What is read and written does not grow with the history: counted in steps of SQLite's virtual machine, not in seconds

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
    """The steps of one piece of work, whose statements have been prepared before."""
    work(history)
    counted = count()
    history.connection.set_progress_handler(lambda: next(counted) < 0, 10)
    try:
        work(history)
        return next(counted)
    finally:
        history.connection.set_progress_handler(None, 0)


def test_adding_a_run_costs_the_same_in_a_large_history_and_a_long_hunt(sizes: tuple[History, History]) -> None:
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


def test_queries_about_a_hunt_look_at_that_hunt(sizes: tuple[History, History]) -> None:
    one, many = sizes
    for sql in QUERIES:
        found, most = (steps(history, lambda history, sql=sql: history.select(sql)) for history in (many, one))
        assert found <= 1.5 * most + 50, sql


def test_the_list_does_not_look_at_runs(sizes: tuple[History, History]) -> None:
    one, many = sizes
    before = steps(many, History.hunts)
    assert before <= 1.2 * MANY * steps(one, History.hunts) + 50
    assert [hunt.runs for hunt in many.hunts()][:2] == [16, 16]
    [(runs,)] = many.select("select count(*) from runs where session_id = ?", [MANY])
    assert many.session_summary(MANY).runs == runs


@pytest.mark.slow
def test_a_new_hunt_reads_the_latest_runs_only(history: History) -> None:
    """With the runs that it needs in the latest hunts, it does not matter how many others there are."""

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
