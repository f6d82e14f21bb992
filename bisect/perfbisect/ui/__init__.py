"""Views, which show the events of running sessions. The code that builds and measures never calls a view."""
