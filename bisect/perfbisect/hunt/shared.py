"""The shared builds that the user has configured."""

from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.recipes.configuration import load_configuration


def shared_builds() -> SharedBuilds | None:
    """The shared builds of the user's configuration; None without any. Raises RecipeError for a mistake in it."""
    shared = load_configuration().shared
    return SharedBuilds(shared.builds, shared.secret()) if shared.builds else None
