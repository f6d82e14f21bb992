"""A PostgreSQL and a MariaDB server for tests of suites. Each is started once, and has a database for each suite."""

from collections.abc import Iterator

import pytest

from installed_servers import BUILDERS, started
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values

SLOW = [
    pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.dbms, pytest.mark.slow]) for each in BUILDERS
]


@pytest.fixture(scope="session", params=SLOW)
def installed_server(request: pytest.FixtureRequest) -> Iterator[tuple[Builder, Values]]:
    """A running server: its builder, and the values of the builder's placeholders."""
    builder: Builder = request.param
    assert builder.server
    with started(builder.server) as values:
        yield builder, values
