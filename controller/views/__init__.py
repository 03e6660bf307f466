"""Data that commands and the page show: `overview.build` computes them from a snapshot (pure).

It uses the rules of the other packages and has none of its own. May import every package below it; writes nothing.
"""
