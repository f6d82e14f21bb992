"""The data types of the domain: graphs of commits, facts, work orders (descriptions of measurements), events, metrics
and settings."""
