"""The domain: plans which pairs of nodes probe each other, and converts their latency samples to costs of zone pairs.

`pairs` plans probes, `quality` flags measurements, `smoothing` decides when a jump counts, `consensus` compares node pairs, `costs`
computes the costs of zone pairs. All but `netperf.probers` is pure: the time is an argument, and hashes take the place of randomness.
"""
