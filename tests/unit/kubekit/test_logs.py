"""Logs are parseable lines, and a lasting state is logged only when it changes."""

from __future__ import annotations

import io
import json
import logging

import pytest

from kubekit import logs


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_text_lines_quote_ambiguous_values(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    logs.get("agent.capacity").info("published", rate_bps=10**9, why="two words", empty="", at_s=1795260000.5)
    line = stream.getvalue()
    assert 'agent.capacity: published rate_bps=1000000000 why="two words" empty="" at_s=1795260000.5\n' in line
    assert " info " in line


def test_json_lines_have_fields_and_traces(stream: io.StringIO) -> None:
    logs.configure(format_="json", stream=stream)
    try:
        raise ValueError("boom")
    except ValueError as error:
        logs.get("x").log_exception("broken", error, node="n1", level="low", time="now")
    line = json.loads(stream.getvalue())
    assert line["message"] == "broken"
    assert line["node"] == "n1"
    # Fields do not replace the level and the time of the line.
    assert line["level"] == "error"
    assert line["time"] != "now"
    assert "ValueError: boom" in line["trace"]


def test_the_level_also_limits_the_logs_of_libraries(stream: io.StringIO) -> None:
    logs.configure(level="error", stream=stream)
    logging.getLogger("asyncio").warning("slow callback")
    assert not stream.getvalue()
    # At level debug, only warnings of libraries are logged.
    logs.configure(level="debug", stream=stream)
    logging.getLogger("asyncio").info("selector")
    assert not stream.getvalue()


def test_a_state_is_logged_when_it_begins_changes_and_ends(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    log = logs.get("x")
    states = ["", "bad", "bad", "worse", "", ""]
    is_logged = [log.log_change("plan", state, "m", number=number) for number, state in enumerate(states)]
    assert is_logged == [False, True, False, True, True, False]
    assert [line.split(" ")[1] for line in stream.getvalue().splitlines()] == ["warning", "warning", "info"]


def test_a_state_is_logged_again_after_an_hour_without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.get("x")
    for at_s, is_logged in ((0, True), (3000, False), (6000, False), (10_000, True)):
        monkeypatch.setattr("time.monotonic", lambda at_s=at_s: at_s)
        assert log.log_change("group", "refused", "m") == is_logged, at_s


def test_the_oldest_of_more_than_ten_thousand_states_are_forgotten() -> None:
    log = logs.get("x")
    for number in range(10_050):
        log.log_change(f"pod-{number}", "bad", "m")
    assert log.log_change("pod-0", "bad", "m"), "logged again"
    assert not log.log_change("pod-10049", "bad", "m")
