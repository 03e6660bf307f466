"""The subcommands of ``python -m lab``, one module each: ``add_parser`` declares arguments, ``run`` executes.

They may import anything of the lab; nothing in the lab imports them. A command ends what it started, also when interrupted.
"""
