"""A log-in plugin for tests: prints an ExecCredential from the files beside it, and counts how often it is asked.

``python login_plugin.py FOLDER``: FOLDER/status.json is the status to print; FOLDER/calls gets one line a call, which is what
KUBERNETES_EXEC_INFO said. Its API version is the one that the caller asked for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(asked) + "\n")
if (folder / "fails").exists():
    sys.exit("no session: log in first")
status = json.loads((folder / "status.json").read_text())
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
