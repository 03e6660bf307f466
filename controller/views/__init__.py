"""What commands and the page show, as plain data: `overview.build` computes it from a snapshot and a time (pure).

It uses the rules of the other packages and has none of its own. May import every package below it; writes nothing.
"""
