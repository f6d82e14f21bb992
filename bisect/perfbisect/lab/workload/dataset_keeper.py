"""Which loaded data each build runs on: loaded, verified, loaded again when damaged, replaced when refused."""

from collections.abc import Generator, Mapping

from perfbisect.core.domain.events import Warned
from perfbisect.errors import DataDamaged, RunFailed, UsageError
from perfbisect.host.protocol import Host
from perfbisect.lab.server.service import System
from perfbisect.lab.workload import dataset
from perfbisect.recipes.workload import Workload


class DatasetKeeper:
    """The data of one workload on one host."""

    def __init__(self, host: Host, workload: Workload, earlier: Mapping[str, str]) -> None:
        """``earlier`` maps a commit to the key of its data in earlier sessions of the hunt."""
        self.host = host
        self.workload = workload
        self.earlier = earlier
        self.keys: dict[str, str] = {}  # commit → key of its data, once that is loaded
        self._refused: dict[str, dict[str, RunFailed]] = {}  # commit → keys of data on which it does not start, and why
        self._verified: set[str] = set()  # keys of data that is known to be undamaged
        self._reloaded: set[str] = set()  # keys of data that was found damaged

    def load(self, system: System) -> Generator[Warned]:
        """Load the data for a build, or find it loaded and undamaged; its key is in ``keys`` then.

        Raises RunFailed when it cannot be loaded, JobLost when the host has lost the work, UsageError when it would be
        other data than in earlier sessions, DataDamaged when it was damaged before.
        """
        commit, found = system.commit, ""
        while commit not in self.keys:
            try:
                data = dataset.make(self.host, system, self.workload, [*self._refused.get(commit, ())])
                found = data.key
                self._check_earlier(system, found)
                if not (data.fresh or found in self._verified):
                    dataset.verify(self.host, system, self.workload, found)
                self._verified.add(found)
                self.keys[commit] = found
            except DataDamaged as damaged:
                yield self.damaged(found, damaged)
            except RunFailed as failure:
                if not self.refuse(system, found, failure):
                    raise
        if refused := self._refused.get(commit):
            key, why = list(refused.items())[-1]
            yield Warned(
                f"{commit[:10]} does not start on the data {key}, which another build has loaded, and is given"
                f" {self.keys[commit]}: {why}",
                "If that happens to many commits, let the recipe's dataset.format_command print in what they differ.",
            )

    def damaged(self, key: str, damaged: DataDamaged) -> Warned:
        """Remove damaged data, so that it is loaded again. Raises the error when that has been done before."""
        if key in self._reloaded:
            damaged.advice = (
                f"It was loaded again in this session already: the disk of host {self.host.name} may be failing."
            )
            raise damaged
        self._reloaded.add(key)
        self._verified.discard(key)
        self.keys = {commit: known for commit, known in self.keys.items() if known != key}
        dataset.remove(self.host, key)
        return Warned(f"{damaged}: it is loaded again")

    def refuse(self, system: System, key: str, failure: RunFailed) -> bool:
        """True when a server did not start on data that another build has loaded: ``load`` gives it other data then."""
        refused = self._refused.setdefault(system.commit, {})
        if not key or failure.stage != "start" or key in refused:
            return False
        if dataset.loader(self.host, key) == system.key:
            return False
        refused[key] = failure
        self.keys.pop(system.commit, None)
        return True

    def _check_earlier(self, system: System, key: str) -> None:
        before = self.earlier.get(system.commit)
        if before is not None and dataset.shared_key(before) != dataset.shared_key(key):
            raise UsageError(
                f"{system.commit[:10]} would now be run with other settings or data than before, so the runs of then and"
                " now cannot be compared.",
                f"The recipe of {system.builder.name}, workload {self.workload.name}, hosts.toml or perfbisect has changed:"
                " undo that, or begin a new hunt.",
            )
