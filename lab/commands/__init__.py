"""The subcommands of ``python -m lab``, one module each: ``add_parser`` says what it takes, ``run`` does it.

They may import anything of the lab; nothing in the lab imports them. What a command started it ends, also when it is interrupted.
"""
