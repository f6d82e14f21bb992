"""The pure core: facts in, orders out.

Modules of core use no clock, files, processes or network, and import no other package of perfbisect.
"""
