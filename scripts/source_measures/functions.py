"""Lines of code, parameters of functions, fields of dataclasses, cyclomatic complexity."""

import ast
import io
import tokenize
from typing import NamedTuple

from source_measures.source import FUNCTION, Function, Source


class Finding(NamedTuple):
    """A function or class, and its number.

    Attributes:
        where: `path:line`.
        name: of the function or class.
        number: its parameters, fields or complexity.
    """

    where: str
    name: str
    number: int


def code_lines(source: Source) -> int:
    """Lines with code, without blank lines, comments and string statements."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in layout and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    text = source.text.splitlines()
    return sum(bool(text[line - 1].strip()) for line in lines)


def parameters(node: Function, *, in_class: bool) -> int:
    """Number of parameters of a function, without `self` and `cls`."""
    arguments = node.args
    ordered = [*arguments.posonlyargs, *arguments.args]
    own = in_class and bool(ordered) and ordered[0].arg in ("self", "cls")
    variable = sum(argument is not None for argument in (arguments.vararg, arguments.kwarg))
    return len(ordered) - own + len(arguments.kwonlyargs) + variable


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class has the decorator `dataclass`."""
    bare = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(ast.unparse(decorator).rpartition(".")[2] == "dataclass" for decorator in bare)


def own_fields(node: ast.ClassDef) -> list[tuple[str, ast.AnnAssign]]:
    """The annotated fields of a class body, without `ClassVar`."""
    return [
        (item.target.id, item)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        if "ClassVar" not in ast.unparse(item.annotation)
    ]


def init_fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass that its generated `__init__` takes, without inherited ones."""
    return [
        name
        for name, field in own_fields(node)
        if name != "_" and not (field.value and "init=False" in ast.unparse(field.value))
    ]


def complexity(function: Function) -> int:
    """The cyclomatic complexity of a function, as radon counts it.

    1, and 1 for each: `if` and conditional expression; loop; `else` of a loop or `try`; `except`; operand of `and` and
    `or` after the first; `for` and `if` of a comprehension; `assert`; `case` other than `_`. Functions and classes
    inside do not count, nor does the condition of an `assert`. McCabe's own count, which is that of ruff's C901, leaves
    out everything inside of expressions, and `assert`.
    """
    total = 1
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            continue
        total += _branches(node)
        if not isinstance(node, ast.Assert):
            stack += ast.iter_child_nodes(node)
    return total


def _branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.Assert():
            return 1
        case ast.For() | ast.AsyncFor() | ast.While():
            return 1 + bool(node.orelse)
        case ast.Try() | ast.TryStar():
            return len(node.handlers) + bool(node.orelse)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.Match():
            return sum(not _takes_anything(case.pattern) for case in node.cases)
    return 0


def _takes_anything(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None
