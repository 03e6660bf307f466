"""Commands that end by themselves: their output, or an error that says what they said."""

from __future__ import annotations

import pytest

from lab.errors import BootError
from lab.programs import run_to_end


async def test_what_a_command_prints_is_returned_without_its_complaints() -> None:
    words = ["sh", "-c", 'echo "$GREETING"; echo noise >&2']
    assert await run_to_end(words, "greeting", 10, env={"GREETING": "hello"}) == b"hello\n"


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_a_command_that_fails_says_why_wherever_it_said_it(stream: str) -> None:
    with pytest.raises(BootError, match="greeting: no such place"):
        await run_to_end(["sh", "-c", f"echo no such place >&{stream}; exit 3"], "greeting", 10)


async def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(BootError, match="greeting: no end after 0 s"):
        await run_to_end(["sleep", "60"], "greeting", 0.1)
