"""Mutants of a module: its syntax tree with one thing changed, as one would by mistake.

Operators: comparison (the opposite), boundary (< and <=), arithmetic, constant, negated condition (and swapped and/or), removed
call (the first argument in its place), removed statement. What cannot matter (docstrings, annotations, imports) stays.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
REMOVABLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Delete)


class Mutant(NamedTuple):
    """One change.

    Attributes:
        where: name of the class and function, as far as there is one.
        operator: which kind of change.
        change: the text before and after, cut to what differs.
        source: of the whole module.
    """

    where: str
    operator: str
    change: str
    source: str

    @property
    def name(self) -> str:
        """Stays the same while neither the place nor the text changes."""
        return f"{self.where}: {self.operator}: {self.change}"


Change = Callable[[Any], ast.AST | None]


def mutants_of(source: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text."""
    tree = ast.parse(source)
    for position, (where, node) in enumerate(_nodes(tree)):
        for operator, change in _changes(node):
            fresh = copy.deepcopy(tree)
            _, target = list(_nodes(fresh))[position]
            before = ast.unparse(target)
            after = change(target)
            if after is None:
                continue
            _replace(fresh, target, after)
            text = f"{_short(before)} -> {_short(ast.unparse(after)) or 'nothing'}"
            yield Mutant(where, operator, text, ast.unparse(ast.fix_missing_locations(fresh)))


def _short(text: str) -> str:
    return " ".join(text.split())[:120]


def _nodes(tree: ast.AST, where: str = "", *, skip: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """Nodes that may be changed, with the function they are in."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "bases", "keywords"} and not isinstance(tree, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom):
                continue
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                continue
            inner = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{where}.{child.name}" if where else child.name
            yield inner, child
            yield from _nodes(child, inner)


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        op = type(node.ops[0])
        yield "comparison", lambda n: ast.Compare(n.left, [OPPOSITE[op]()], n.comparators)
        if op in BOUNDARY:
            yield "boundary", lambda n: ast.Compare(n.left, [BOUNDARY[op]()], n.comparators)
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield "arithmetic", _other_arithmetic
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield "constant", lambda n: ast.Constant(not n.value if isinstance(n.value, bool) else n.value + 1)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "negated condition", _negated
    if isinstance(node, ast.BoolOp):
        yield "negated condition", lambda n: ast.BoolOp(ast.Or() if isinstance(n.op, ast.And) else ast.And(), n.values)
    if isinstance(node, ast.comprehension) and node.ifs:
        yield (
            "negated condition",
            lambda n: ast.comprehension(n.target, n.iter, [ast.UnaryOp(ast.Not(), n.ifs[0]), *n.ifs[1:]], n.is_async),
        )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "negated condition", lambda n: n.operand
    if isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield "removed call", lambda n: n.args[0]
    if isinstance(node, REMOVABLE):
        yield "removed statement", lambda n: ast.Return(None) if isinstance(n, ast.Return) and n.value else ast.Pass()


def _other_arithmetic(node: ast.BinOp | ast.AugAssign) -> ast.AST:
    op = ARITHMETIC[type(node.op)]()
    if isinstance(node, ast.AugAssign):
        return ast.AugAssign(node.target, op, node.value)
    return ast.BinOp(node.left, op, node.right)


def _negated(node: ast.If | ast.While | ast.IfExp) -> ast.AST:
    changed = copy.copy(node)
    changed.test = ast.UnaryOp(ast.Not(), node.test)
    return changed


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if item is old:
                        value[i] = new
                        return
