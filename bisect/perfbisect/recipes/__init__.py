"""Reads recipes: TOML files that describe a database, a workload or a machine. Unknown keys and wrong types are
errors."""
