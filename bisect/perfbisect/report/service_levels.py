"""Whether each build of a comparison sustained the rates that go on beside the measured queries: its service level (SLA)."""

from collections.abc import Iterator
from dataclasses import dataclass

from perfbisect.core.domain.background import BUSY, Background, background, busiest
from perfbisect.core.domain.trials import Trial
from perfbisect.report.blocks import Block, Cell, Row, columns, missing
from perfbisect.wording.quantities import figure, percent
from perfbisect.wording.text import printable


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """One workload: what each build sustained, None where it was not measured or has no background."""

    work: str
    builds: tuple[Background | None, ...]
    clients: tuple[float | None, ...]  # share of their time in which the measured threads of the client were busy

    @property
    def wanted(self) -> float | None:
        """Rows per second; None without a background."""
        return next((build.wanted for build in self.builds if build), None)


def service_levels(trial: Trial) -> list[ServiceLevel]:
    """Those of all workloads that are known."""
    found = []
    for number, work in enumerate(trial.request.works):
        builds = [
            [run.facts for run in trial.runs if (run.work, run.subject) == (number, subject)]
            for subject in range(len(trial.request.subjects))
        ]
        found.append(ServiceLevel(work.name, tuple(map(background, builds)), tuple(map(busiest, builds))))
    return [level for level in found if level.wanted is not None or any(level.clients)]


def block(trial: Trial) -> Block | None:
    """The rate that each build sustained, coloured where it fails; None where no workload has a background."""
    rows = []
    for level in service_levels(trial):
        if level.wanted is not None:
            cells = (_cell(build.held, build.sustained) if build else missing(2) for build in level.builds)
            rows.append(Row((_cell(level.wanted, True), *cells), printable(level.work)))
    head = ("wanted", "baseline", *columns(trial))
    plain = tuple(f"{column}{part}" for column in head for part in ("", " SLA"))
    return Block(("Background rows per second",), head, tuple(rows), "workload", plain) if rows else None


def _cell(rate: float, sustained: bool) -> Cell:
    return Cell(figure(rate), (f"{rate:.6g}", "" if sustained else "fails"), "" if sustained else "worse")


def remarks(trial: Trial) -> Iterator[str]:
    """Which builds fail, and where the client may be what limits."""
    for level in service_levels(trial):
        for subject, build, client in zip(trial.request.subjects, level.builds, level.clients, strict=True):
            if build and not build.sustained:
                rates = f"{figure(build.held)} of {figure(build.wanted)} rows per second"
                yield f"{subject.name} fails the SLA of {level.work}: it sustains {rates} ({build.role})."
            if client is not None and client >= BUSY:
                yield f"In {level.work} of {subject.name} the client is busy for {percent(client)} of the time, and may limit it."
