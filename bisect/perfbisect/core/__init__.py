"""The core: functions without side effects that compute orders and verdicts from facts.

Modules of core use no clock, files, processes or network, and import no other package of perfbisect.
"""
