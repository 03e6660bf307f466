"""Shell blocks and files that documents show."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENTS = Path(__file__).parents[2] / "docs"


def blocks(page: str, heading: str) -> list[str]:
    """The blocks for a shell below a heading of a page, or, for an empty heading, those before the first one."""
    parts = re.split(r"^## (.*)$", (DOCUMENTS / f"{page}.md").read_text(), flags=re.MULTILINE)
    below = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return re.findall(r"^```sh\n(.*?)^```", below[heading], re.MULTILINE | re.DOTALL)


def keep_files(page: str, folder: Path) -> None:
    """Write the files that a page shows, by the names that it gives them."""
    text = (DOCUMENTS / f"{page}.md").read_text()
    for name, body in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(body)
