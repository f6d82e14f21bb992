"""The hosts of a session are left as they were found, unless they are somebody else's by then."""

from pathlib import Path

import pytest

from perfbisect.host.lock import ABANDONED, hold
from perfbisect.host.registry import connect
from perfbisect.hunt.host_locks import clear
from perfbisect.recipes.inventory import load_host
from tickets import write_ticket

pytestmark = pytest.mark.tools


@pytest.mark.parametrize("taken", [False, True])
def test_the_visit_of_who_took_the_lock_over_stays(taken: bool) -> None:
    host = connect(load_host("local"))
    visit = Path(host.root, "visit")
    with hold(host, "a hunt") as held:
        visit.mkdir(parents=True)
        if taken:  # while we slept
            write_ticket()
        held.seen -= ABANDONED
        clear(host, held, None)
        assert visit.exists() == taken
