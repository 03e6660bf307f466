"""``python -m lab.wan``: the process behind the emulated network. The lab starts it; people use ``python -m lab wan``."""

import sys

from lab.wan.server import main

sys.exit(main(sys.argv[1:]))
