"""A commit's build: from this host, from the shared builds, or by building."""

import time
from collections.abc import Generator
from dataclasses import replace

from perfbisect.core.domain.events import Warned
from perfbisect.lab.build import build_store, pipeline
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.lab.build.progress import Progress
from perfbisect.lab.build.shared.builds import SharedBuilds
from perfbisect.lab.build.toolchain import mentions_native


def obtain(shared: SharedBuilds | None, context: BuildContext, sha: str) -> Generator[Progress | Warned, None, Built]:
    """As ``pipeline.build``, but a build that others have made is fetched, and one that they lack is given to them.

    Both happen at once, while the host does nothing else: a run that is measured later is not disturbed.
    """
    if shared is None:
        return (yield from pipeline.build(context, sha))
    began = time.monotonic()
    key = pipeline.key_of(context, sha)
    here = build_store.find(context.host, key, sha) is not None
    fetched = not here and (yield from shared.fetch(context, key))
    took = time.monotonic() - began
    built = yield from pipeline.build(context, sha)
    if fetched and built.facts.reused:
        return replace(built, facts=replace(built.facts, shared=True, seconds=took))

    def processor_matters() -> bool:
        """What an earlier session has built may: the files that say so are gone."""
        places = [context.work / "build", context.work / "source"]
        return built.facts.reused or mentions_native(context.host, places)

    yield from shared.offer(context, built.facts.key, processor_matters)
    return built
