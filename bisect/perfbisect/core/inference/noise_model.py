"""What can disturb a reading, as assumed before the first one: by how it was measured.

* ``USUAL``: timed runs of builds as they are linked. Each build has a layout of its own, which repeats never average away,
  and the host drifts.
* ``FRESH``: timed runs, each of a build that was linked again with its functions in another order. Its layout is drawn
  again with every visit, so it is part of the visit effect and of the noise of a run, and repeats average it away.
* ``EXACT``: counts that repeat, such as instructions. Nothing drifts, and layout and neighbours have no effect. So little
  noise shows steps that runs would hide: many commits that are not worth a name change the count of instructions a bit.

All sizes are in log units: fractions, where they are small.
"""

from dataclasses import dataclass, replace

Drift = tuple[float, float, float]  # (size in s.d. of a run, memory in units of the pace of readings, prior)
Visit = tuple[float, float]  # (size of the effect that the runs of a visit share, in s.d. of a run; prior)


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """The laws that readings of one sort may follow, each with its prior."""

    exact: bool  # whether a run shows the level of its build: no outliers, and steps of any size are seen
    layouts: tuple[tuple[float, float], ...]  # (s.d. of what one build differs by for code placement, prior)
    odd: float  # prior of a build to be odd: its layout is of the order of the change
    walks: tuple[tuple[float, float], ...]  # (s.d. of all small steps of the range together, prior)
    drifts: tuple[Drift, ...]
    visits: tuple[Visit, ...]  # where visits have several runs
    # further laws, for ratios alone: decisions do not depend on them
    large_drifts: tuple[Drift, ...]
    large_visits: tuple[Visit, ...]
    calm: float  # noise above which a steady host becomes unlikely: what makes runs vary comes in phases
    noise: float  # s.d. of a run before any was seen,
    worth: float  # and how many runs that guess is worth
    host_offset: float  # s.d. of a constant difference between two hosts, in s.d. of a run
    first_runs: tuple[int, int]  # of each end: where builds are cheap, and where they are dear
    fewest: float  # runs of each end before they are taken not to differ
    proof: int  # fresh runs of the culprit and of each parent; one more on a host that drifts
    patience: float  # a search may cost so many times what is usual for such a change
    spent: float  # and may have cost so many times what is usual for the whole difference between the ends
    promised: float  # s.d. of a run: on a noisy host the change that the ends have to show, if not the one hunted
    most: float  # runs of each end
    proof_most: int  # the same after which a proof is given up
    modes: bool  # whether each run is in a layout of its own, of which there may be two modes
    rounds: bool = False  # whether two builds ran at the same time, and readings are differences between them

    @property
    def of_rounds(self) -> "NoiseModel":
        """The same for rounds: what disturbs the host disturbs both builds, so nothing drifts."""
        return replace(
            self, drifts=EXACT.drifts, large_drifts=(), calm=1.0, noise=USUAL.noise / 2, modes=False, rounds=True
        )


USUAL = NoiseModel(
    exact=False,
    layouts=((0.002, 0.30), (0.005, 0.45), (0.010, 0.25)),
    odd=0.02,
    walks=((0.0, 1.0),),
    drifts=((0.0, 1.0, 0.40), (0.8, 5.0, 0.12), (2.0, 5.0, 0.08), (0.8, 25.0, 0.10), (2.0, 25.0, 0.10),
            (0.8, 100.0, 0.10), (2.5, 100.0, 0.10)),
    visits=((0.0, 0.65), (1.0, 0.35)),
    large_drifts=((6.0, 25.0, 0.06), (6.0, 100.0, 0.06)),
    large_visits=((2.0, 0.20), (4.0, 0.05)),
    calm=0.02,
    noise=0.015,
    worth=3.0,
    host_offset=5.0,
    first_runs=(2, 3),
    fewest=3,
    proof=3,
    patience=9.0,
    spent=4.5,
    promised=0.9,
    most=36.0,
    proof_most=40,
    modes=False,
)  # fmt: skip
FRESH = NoiseModel(
    exact=False,
    layouts=((0.0, 1.0),),
    odd=0.0,
    walks=USUAL.walks,
    drifts=USUAL.drifts,
    visits=((0.0, 0.4), (1.0, 0.3), (3.0, 0.3)),
    large_drifts=USUAL.large_drifts,
    large_visits=((6.0, 0.20),),
    calm=0.15,
    noise=0.05,
    worth=1.0,
    host_offset=USUAL.host_offset,
    first_runs=(5, 5),
    fewest=5,
    proof=5,
    patience=40.0,
    spent=30.0,
    promised=0.4,
    most=120.0,
    proof_most=120,
    modes=True,
)
EXACT = NoiseModel(
    exact=True,
    layouts=((0.0, 1.0),),
    odd=0.0,
    walks=((0.0, 0.4), (0.0003, 0.2), (0.001, 0.2), (0.004, 0.2)),
    drifts=((0.0, 1.0, 1.0),),
    visits=((0.0, 1.0),),
    large_drifts=(),
    large_visits=(),
    calm=1.0,
    noise=1e-5,
    worth=1.0,
    host_offset=1000.0,
    first_runs=(2, 2),
    fewest=2,
    proof=1,
    patience=9.0,
    spent=4.5,
    promised=0.9,
    most=36.0,
    proof_most=40,
    modes=False,
)
