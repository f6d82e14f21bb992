"""Whether 95 % intervals of pairs at the same time hold what they say, where nothing differs. See benchmarks/README.md.

Each history has one comparison of a build with a copy of itself, `--pairing paired`. Its pairs are taken ten by ten; of each
ten the interval of the ratio is made as a comparison makes it, by the metric and by CPU time.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean, stdev

from perfbisect.core.domain.facts import pair_runs
from perfbisect.core.domain.metrics import log_metric, log_metric_from_cpu_time
from perfbisect.core.stats.paired_comparison import paired_ratio
from perfbisect.store.history import History

PAIRS = 10  # of an interval


def main() -> None:
    """Print a line for each history and reading, and one for all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=Path, nargs="+", help="of comparisons with the number 1")
    asked = parser.parse_args()
    print("| history | reading | intervals | hold 1 | mean log ratio ± standard error | s.d. of a pair |")
    print("|---|---|---|---|---|---|")
    for name, read in (("the metric", log_metric), ("CPU time", log_metric_from_cpu_time)):
        hold, made = 0, 0
        for path in asked.histories:
            with closing(History.open(path, read_only=True)) as history:
                trial = history.read_trial(1)
            values = [
                (read(one, trial.request.metric), read(two, trial.request.metric))
                for one, two in pair_runs(run.facts for run in trial.runs)
            ]
            known = [one - two for one, two in values if one is not None and two is not None]
            tens = [known[first : first + PAIRS] for first in range(0, len(known) - PAIRS + 1, PAIRS)]
            held = sum(holds(ten) for ten in tens)
            hold, made = hold + held, made + len(tens)
            error = stdev(known) / math.sqrt(len(known))
            print(
                f"| {path.stem} | {name} | {len(tens)} | {held / len(tens):.1%} | {mean(known):+.5f} ± {error:.5f} | {stdev(known):.2%} |"
            )
        print(f"| all | {name} | {made} | {hold / made:.1%} | | |")


def holds(differences: Sequence[float]) -> bool:
    """Whether the interval from these rounds has the ratio 1 in it."""
    found = paired_ratio(dict.fromkeys(range(len(differences)), 0.0), dict(enumerate(differences)))
    return found is not None and not found.excludes_one


if __name__ == "__main__":
    sys.exit(main())
