"""The application: sets up a hunt or a trial, locks its hosts, and runs its loop."""
