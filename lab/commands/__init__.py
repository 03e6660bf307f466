"""The subcommands of ``python -m lab``, one module each: ``add_parser`` says what it takes, ``run`` does it."""
