"""A strict YAML parser. Import this module lazily: PyYAML takes a megabyte, and most agents do not need it."""

from __future__ import annotations

from typing import Any

import yaml


def parse(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        ValueError: the text is not valid YAML, or repeats a key of a mapping; the message has the line and the problem.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(_describe_problem(error)) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Rejects repeated keys; PyYAML silently uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen_keys: set[str] = set()
        for key, _ in node.value:
            if key.value in seen_keys:
                problem = f"the field {key.value} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen_keys.add(key.value)
        return super().construct_mapping(node, deep)


def _describe_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = str(getattr(error, "problem", None) or error)
    return f"line {mark.line + 1}: {text}" if mark else text
