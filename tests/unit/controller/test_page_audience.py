"""Viewers of the page: messages in order, a slow one let go, and no more than there is room for."""

from __future__ import annotations

from controller.page.audience import QUEUE_LENGTH, Audience


async def test_everybody_hears_everything_in_order() -> None:
    audience = Audience(4)
    with audience.seat() as one, audience.seat() as other:
        for text in (b"a", b"b"):
            assert audience.tell(text) == 0
        assert [await one.next(), await one.next()] == [b"a", b"b"]
        assert [await other.next(), await other.next()] == [b"a", b"b"]


async def test_who_does_not_keep_up_is_let_go_and_the_others_are_not_held_up() -> None:
    audience = Audience(4)
    with audience.seat() as slow, audience.seat() as quick:
        for index in range(QUEUE_LENGTH):
            assert audience.tell(b"%d" % index) == 0
            assert await quick.next() == b"%d" % index
        assert audience.tell(b"one too many") == 1
        assert await slow.next() is None, "its stream ends; it forgets what it had queued"
        assert await quick.next() == b"one too many"
        assert len(audience) == 1


async def test_a_late_viewer_starts_with_the_whole_and_not_with_what_was_said_before() -> None:
    audience = Audience(4)
    with audience.seat() as viewer:
        audience.tell(b"older")
        viewer.start_with(b"whole")
        audience.tell(b"newer")
        assert [await viewer.next(), await viewer.next()] == [b"whole", b"newer"]


async def test_there_is_room_for_so_many_and_an_empty_room_is_known() -> None:
    audience = Audience(1)

    def seen() -> tuple[bool, bool]:
        return audience.full, audience.arrived.is_set()

    assert seen() == (False, False)
    with audience.seat():
        assert seen() == (True, True)
    assert seen() == (False, False)
