"""What the benchmark and the builds have noted themselves: each real execution, outside of what perfbisect writes."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Execution:
    """One execution of the benchmark, or of the script that builds it."""

    id: int
    kind: str  # "run", "build"
    commit: int  # its number in the range
    began: float  # seconds, of the kernel's clock
    ended: float | None = None  # None: it was killed, or failed
    rate: float | None = None  # what it printed


@dataclass(slots=True)
class Ledger:
    """All executions of a hunt; ``beside`` are those that began while another still ran."""

    executions: dict[int, Execution] = field(default_factory=dict)
    beside: list[tuple[int, int]] = field(default_factory=list)  # the later, the earlier (0: unknown)

    @property
    def ended_runs(self) -> list[Execution]:
        """The runs that printed a rate."""
        return [each for each in self.executions.values() if each.kind == "run" and each.rate is not None]


def read_ledger(path: Path) -> Ledger:
    """The ledger at ``path``; empty when nothing has begun."""
    ledger = Ledger()
    for line in path.read_text().splitlines() if path.exists() else ():
        match line.split():
            case ["begin", kind, id_, commit, began]:
                ledger.executions[int(id_)] = Execution(int(id_), kind, int(commit), float(began))
            case ["end", _, id_, _, ended, rate]:
                execution = ledger.executions[int(id_)]
                execution.ended, execution.rate = float(ended), float(rate)
            case ["beside", later, *earlier]:
                ledger.beside.append((int(later), int(earlier[0]) if earlier else 0))
            case words:
                raise ValueError(f"not a line of the ledger: {words}")
    return ledger
