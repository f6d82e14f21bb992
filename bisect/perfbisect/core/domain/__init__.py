"""The values of the domain: graph, observations, orders, events, metrics, policy and settings."""
