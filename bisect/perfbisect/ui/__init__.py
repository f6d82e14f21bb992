"""Views of a running hunt. Views draw events; the code that builds and measures never calls views."""
