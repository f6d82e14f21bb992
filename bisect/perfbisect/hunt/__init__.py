"""The application: sets up a hunt or a trial, locks its hosts, and runs the loop that measures until the end."""
