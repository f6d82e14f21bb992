"""One hunt as it was asked for: enough to begin it, and to go on with it after an interruption."""

from dataclasses import dataclass, field

from perfbisect.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `bisect run`, resolved."""

    good: str  # as written
    bad: str
    good_commit: str  # full hash of the good end of the graph (the merge base, where good is not an ancestor of bad)
    bad_commit: str
    repository: str  # absolute path of the local repository
    builder: str
    variant: str
    workload: str
    host: str
    metric: str = "qps"
    first_parent: bool = False
    overrides: dict[str, str | int | float | bool] = field(default_factory=dict)  # of the workload: time, threads, …
    policy: Policy = field(default_factory=Policy)
    builders_path: str = ""  # --builders
    workloads_path: str = ""  # --workloads
    hosts_path: str = ""  # --hosts
