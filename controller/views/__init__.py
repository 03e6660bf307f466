"""Data that commands and the page show: `overview.build_overview` computes them from a snapshot. Pure.

Has no rules of its own: costs, verdicts and findings are those of the packages that it imports.
"""
