"""The application: set up a hunt or a trial, lock hosts, run the loop."""
