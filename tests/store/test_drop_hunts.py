"""The hunts for the drops of a comparison: kept with it, in their present states, in every history that has a copy."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from perfbisect.store.drop_hunts import enter_drop_hunt, enter_settings, read_settings_of

import sample_hunt as sample
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import DropHunt, TrialRun
from perfbisect.store.history import History
from perfbisect.store.transfer import Selection, completed, copy

BUILDS = (TrialBuild("1.0", sample.CANDIDATES[0], seconds=12.5), TrialBuild("1.1", sample.CANDIDATES[-1]))
REQUEST = TrialRequest(
    TrialType.COMPARE, "engine", "o2nofp", "local", "qps", {}, BUILDS,
    (TrialWorkload("scan", "scan", 1.0, 2.0), TrialWorkload("update-index", "write", 1.0, 2.0)), 5, 1,
)  # fmt: skip


def comparison(history: History) -> int:
    """A comparison with a run, whose drop in update-index was hunted by the sample."""
    trial = history.begin_trial(REQUEST, sample.HOST, sample.COMMITS, 1.0)
    history.add_to_trial(trial.id, TrialRun(0, 1, 0, 2.0, 1.0, sample.run(0, 1.0)))
    enter_drop_hunt(history, trial.id, (1, 0, 1), sample.write(history))
    return trial.id


def test_a_comparison_knows_its_hunts_in_their_present_states(history: History) -> None:
    number = comparison(history)
    begun = sample.begin(history)
    enter_drop_hunt(history, number, (0, 0, 1), begun)
    culprit = sample.COMMITS[sample.CULPRIT]
    assert history.trial(f"c{number}").hunts == (
        DropHunt(0, 0, 1, begun, "running"),
        DropHunt(1, 0, 1, 1, "found", culprit.sha, culprit.title),
    )
    again = sample.begin(history)
    enter_drop_hunt(history, number, (0, 0, 1), again)
    assert [each.hunt for each in history.trial(f"c{number}").hunts] == [again, 1]


def test_its_builds_keep_what_they_took(history: History) -> None:
    assert [each.seconds for each in history.trial(f"c{comparison(history)}").request.subjects] == [12.5, 0.0]


def test_settings_come_back(history: History) -> None:
    number = comparison(history)
    assert read_settings_of(history, number) is None
    for settings in (sample.SETTINGS, replace(sample.SETTINGS, repository="/elsewhere")):
        enter_settings(history, number, settings)
        assert read_settings_of(history, number) == settings


def test_a_copy_has_the_hunts_under_their_numbers_there(tmp_path: Path) -> None:
    with closing(History.open(tmp_path / "a.db")) as source, closing(History.open(tmp_path / "b.db")) as target:
        name = f"c{comparison(source)}"
        sample.begin(target)  # so that numbers differ
        wanted = completed(source, Selection((), (name,)))
        assert wanted.hunts == (1,)
        copy(source, target, wanted, "anna")
        [copied] = target.trial("c1").hunts
        assert copied == replace(source.trial(name).hunts[0], hunt=2)
        assert {done.how for done in copy(source, target, wanted, "anna")} == {"known"}


def test_a_hunt_that_began_after_the_comparison_was_copied_follows_it(tmp_path: Path) -> None:
    with closing(History.open(tmp_path / "a.db")) as source, closing(History.open(tmp_path / "b.db")) as target:
        trial = source.begin_trial(REQUEST, sample.HOST, sample.COMMITS, 1.0)
        copy(source, target, Selection((), (trial.name,)), "anna")
        assert target.trial("c1").hunts == ()
        enter_drop_hunt(source, trial.id, (1, 0, 1), sample.write(source))
        copy(source, target, completed(source, Selection((), (trial.name,))), "anna")
        assert [each.state for each in target.trial("c1").hunts] == ["found"]
