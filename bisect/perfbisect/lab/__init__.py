"""What is done on a host: check out, build, load data, start, run the workload, count."""
