"""The subcommands of ``python -m lab``, one module each: ``add_parser`` declares arguments, ``run`` executes.

They may import all of the lab; no other module of the lab imports them. A command ends what it started, also when interrupted.
"""
