"""The demo: a small storage engine in C, and a git history of it in which one commit is slower."""
