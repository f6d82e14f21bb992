"""Recipes: facts about a database, a workload or a machine, written as TOML and read strictly."""
