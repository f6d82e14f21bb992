"""Views of a running hunt. A view shows the events of sessions; the code that builds and measures never calls a
view."""
