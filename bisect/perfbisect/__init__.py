"""perfbisect finds the commit that made a database slower."""

__version__ = "0.1.0"
