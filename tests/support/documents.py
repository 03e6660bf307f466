"""Reads shell blocks and files from documents."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

DOCUMENTS = Path(__file__).parents[2] / "docs"


def read_shell_blocks(page: str, heading: str) -> list[str]:
    """The shell blocks of a page below a heading; before the first heading if it is empty."""
    first_section, *others = re.split(r"^## (.*)$", (DOCUMENTS / f"{page}.md").read_text(), flags=re.MULTILINE)
    section_by_heading = {"": first_section, **dict(zip(others[::2], others[1::2], strict=True))}
    # A block in a list is indented.
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", section_by_heading[heading], re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in blocks]


def write_shown_files(page: str, folder: Path) -> None:
    markdown = (DOCUMENTS / f"{page}.md").read_text()
    for name, body in re.findall(r"```yaml\n# (\S+)\n(.*?)```", markdown, re.DOTALL):
        (folder / name).write_text(body)
