"""A lab whose runs must have a value for the metric."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from perfbisect.core.domain.events import LabEvent, RunFinished
from perfbisect.core.domain.metrics import readable
from perfbisect.core.domain.orders import Measure
from perfbisect.errors import NothingToCompare
from perfbisect.lab.guarded_lab import Lab


@dataclass(frozen=True, slots=True)
class MetricLab:
    """Measures with ``lab`` and checks the metric of the runs."""

    lab: Lab
    metric: str

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Measure; see ``Lab.measure``.

        Raises NothingToCompare at the end of an order in which no run of a build had a value for the metric: the
        search would only give the same order again.
        """
        measured: dict[int, str] = {}  # candidate → commit
        valued: set[int] = set()
        with closing(self.lab.measure(order)) as events:
            for event in events:
                yield event
                if isinstance(event, RunFinished):
                    measured[event.candidate] = event.facts.commit
                    if readable(event.facts, self.metric) is not None:
                        valued.add(event.candidate)
        if without := measured.keys() - valued:
            raise NothingToCompare(
                f"The last runs of {measured[min(without)][:10]} have no value for {self.metric}, or it is 0 or"
                " infinite, so there is nothing to compare.",
                "Choose another metric with --metric.",
            )
