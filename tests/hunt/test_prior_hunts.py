"""What a hunt begins with, given the history."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.settings import Settings
from perfbisect.hunt.prior_hunts import REMEMBERED, known_failures, with_prior_knowledge
from perfbisect.store.history import History


@pytest.fixture
def told(tmp_path: Path) -> Iterator[History]:
    """A history with the sample hunt in it."""
    with closing(History.open(tmp_path / "history.db")) as opened:
        sample.write(opened)
        yield opened


def on(*classes: str) -> Settings:
    """A hunt on a new host and on the one of the sample hunt, each of the class given."""
    prior = replace(sample.SETTINGS.prior, host_classes=classes)
    return replace(sample.SETTINGS, host="new", further_hosts=("local",), prior=prior)


def test_a_new_host_knows_what_one_of_its_class_knows(told: History) -> None:
    before = with_prior_knowledge(told, sample.SETTINGS).prior
    assert before.build_cost == pytest.approx(7.5 / 12.5)
    after = with_prior_knowledge(told, on("c8", "c8"))
    assert (after.prior.build_cost, after.prior.noise) == (before.build_cost, before.noise)
    assert after.hosts == ("new", "local")
    [failed] = known_failures(told, on("c8", "c8"), sample.BEGAN + 1000)
    assert failed.commit == sample.CANDIDATES[4]


def test_a_host_of_another_class_teaches_nothing(told: History) -> None:
    assert with_prior_knowledge(told, on("c8", "arm")) == on("c8", "arm")
    assert known_failures(told, on("c8", "arm"), sample.BEGAN + 1000) == ()


def test_failures_are_forgotten_in_the_end(told: History) -> None:
    assert known_failures(told, sample.SETTINGS, sample.BEGAN + 1000)
    assert known_failures(told, sample.SETTINGS, sample.BEGAN + 1000 + REMEMBERED) == ()
