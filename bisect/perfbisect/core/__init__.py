"""The pure core: facts in, orders out. No clock, files, processes or network; imports nothing of ours."""
