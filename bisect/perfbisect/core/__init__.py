"""The core: functions without side effects that compute the next measurement or the verdict from facts.

Modules of ``core`` use no clock, files, processes or network, and import no module of perfbisect outside of ``core``.
"""
