"""A credential plugin: ``python login_plugin.py FOLDER`` prints an ExecCredential with the status in FOLDER/status.json.

It appends KUBERNETES_EXEC_INFO to FOLDER/calls, waits while FOLDER/held exists, and fails if FOLDER/fails exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
exec_info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(exec_info) + "\n")
while (folder / "held").exists():
    time.sleep(0.01)
if (folder / "fails").exists():
    sys.exit("no session: log in first")
status = json.loads((folder / "status.json").read_text())
print(json.dumps({"apiVersion": exec_info["apiVersion"], "kind": "ExecCredential", "status": status}))
