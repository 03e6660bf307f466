"""``python -m lab.wan``: the forwarder process. The lab starts it; people use ``python -m lab wan``."""

import sys

from lab.wan.forwarder import main

sys.exit(main(sys.argv[1:]))
