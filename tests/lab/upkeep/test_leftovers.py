"""What earlier sessions have left."""

from pathlib import Path

import pytest

from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.upkeep.leftovers import prune

pytestmark = pytest.mark.tools


def test_only_the_last_folders_of_ended_jobs_are_kept(host: LocalHost) -> None:
    alive = jobs.start(host, ["sleep", "60"], name="alive", timeout=60)
    names = [f"29990101-00000{number}-ended-abcdef" for number in range(5)]
    for name in names:
        Path(host.root, "jobs", name).mkdir()
    prune(host, 2)
    assert sorted(path.name for path in Path(host.root, "jobs").iterdir()) == [alive.id, *names[3:]]
    jobs.kill(host, alive)
