"""A section is read strictly, its limits also hold inside other sections, and errors name the field as in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, convert, load_yaml, parse_yaml


class Inner(Section, frozen=True):
    """A section within another."""

    wait_s: Annotated[float, Range(0, 60)] = 1.0
    max_count: Annotated[int, Range(1, 5)] | None = None


class Outer(Section, frozen=True):
    """A document."""

    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    min_count: int = 0

    def check_rules(self, field: str) -> None:
        """A rule over two fields."""
        if self.inner.max_count is not None and self.min_count > self.inner.max_count:
            raise ConfigError("minCount", "is above inner.maxCount")


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"inner": {"waitS": 61}}, "inner.waitS: 61.0 is out of range (0 to 60)"),
        ({"inner": {"waitS": float("nan")}}, "inner.waitS: nan is out of range (0 to 60)"),
        ({"items": [{}, {"maxCount": 0}]}, "items[1].maxCount: 0 is out of range (1 to 5)"),
        ({"inner": {"wait_s": 1}}, "inner.wait_s: is not a field of this section (remove it, or check its spelling)"),
        ({"inner": {"waitS": "soon"}}, "inner.waitS: expected `float`, got `str`"),
        ({"inner": {"maxCount": 2}, "minCount": 3}, "minCount: is above inner.maxCount"),
        ([], "the document: expected `object`, got `array`"),
    ],
)
def test_an_invalid_field_is_named_as_in_the_file(document: object, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(document, Outer).validate()
    assert str(caught.value) == error


def test_limits_are_inclusive_and_an_absent_value_is_valid() -> None:
    convert({"inner": {"waitS": 60, "maxCount": 5}, "items": [{"waitS": 0, "maxCount": 1}]}, Outer).validate()
    Outer().validate()


@pytest.mark.parametrize("text", ["? [a]\n: 1\n", "? {a: 1}\n: 2\n"])
def test_a_key_that_is_no_scalar_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--config: f\.yaml is not YAML: line 1: a key is not a scalar"):
        parse_yaml(text, "--config", "f.yaml")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--config: .*f\.yaml"):
        load_yaml(path, "--config")
