"""What is run against a build, and the data it runs on."""
