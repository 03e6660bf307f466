"""A strict YAML parser. Import this module lazily: PyYAML takes a megabyte, and most agents do not need it."""

from __future__ import annotations

from typing import Any

import yaml


def parse(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        ValueError: the text is not valid YAML, or a key is repeated or not a scalar; the message has the problem, and its line if known.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(_describe_problem(error)) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Rejects repeated keys, of which PyYAML silently uses the last one, and keys that cannot be in a dict."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen_keys: set[str] = set()
        for key, _ in node.value:
            problem = "a key is not a scalar" if not isinstance(key, yaml.ScalarNode) else ""
            if not problem and key.value in seen_keys:
                problem = f"the field {key.value} appears twice"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen_keys.add(key.value)
        return super().construct_mapping(node, deep)


def _describe_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = str(getattr(error, "problem", None) or error)
    return f"line {mark.line + 1}: {text}" if mark else text
