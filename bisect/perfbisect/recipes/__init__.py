"""Recipes: facts about a database, a workload or a machine, kept as TOML and read by one strict reader."""
