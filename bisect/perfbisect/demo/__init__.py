"""The embedded demo: a small storage engine in C and the history in which one commit slows it down."""
