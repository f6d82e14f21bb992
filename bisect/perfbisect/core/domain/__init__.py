"""The data types of the domain: graph, facts, orders, events, metrics and settings."""
