"""Steps of the Dockerfiles that name our code; tests/integration/manifests/test_image_steps.py runs all steps."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path


def test_the_agents_image_writes_bytecode_of_modules_that_exist() -> None:
    dockerfile = (Path(__file__).parents[3] / "Dockerfile.agent").read_text()
    (modules,) = re.findall(r'^RUN python -c "import (.+)"$', dockerfile, re.MULTILINE)
    for module in modules.split(", "):
        import_module(module)
