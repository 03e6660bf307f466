"""Data that commands and the page show: `overview.build_overview` computes them from a snapshot (pure).

The rules are those of the other packages. May import every package below it; writes nothing.
"""
