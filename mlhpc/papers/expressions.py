"""Evaluates the registry's expressions over the JSON output of commands: numbers, strings, names, ``a.key``,
``a["key"]``, ``a[0]``, arithmetic, comparisons, ``[x for y in z if …]`` and a few functions. Anything else is
refused."""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "len": len, "max": max, "min": min, "sum": sum, "sorted": sorted,
    "mean": statistics.fmean, "median": statistics.median, "stdev": statistics.stdev, "sqrt": math.sqrt,
    "zip": partial(zip, strict=True),
}  # fmt: skip
_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.In: lambda item, whole: item in whole, ast.NotIn: lambda item, whole: item not in whole,
}  # fmt: skip


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of the expression ``text``, which may use ``names`` and ``FUNCTIONS``. Raises ValueError, with the
    expression in its message, if the expression is not supported or has no value (a missing key, a division by
    0)."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, LookupError, TypeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"{text}: {type(error).__name__}: {error}") from None


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    of = partial(_value, names=names)
    match node:
        case ast.Constant(value=int() | float() | str() | None):
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.Attribute():
            return of(node.value)[node.attr]
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.List() | ast.Tuple():
            return [of(item) for item in node.elts]
        case ast.UnaryOp(operand=operand) if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](of(operand))
        case ast.BinOp(left=left, right=right) if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](of(left), of(right))
        case ast.BoolOp():
            values = (of(item) for item in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        case ast.Compare():
            return _compared(node, of)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(of(item) for item in node.args))
        case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
            return [_value(node.elt, inner) for inner in _scopes(each, names)]
    raise ValueError(f"{ast.unparse(node)!r} is not part of the language of expressions")


def _compared(node: ast.Compare, of: Callable[[ast.AST], Any]) -> bool:
    values = [of(item) for item in (node.left, *node.comparators)]
    pairs = zip(node.ops, values, values[1:], strict=False)
    return all(_OPERATIONS[type(each)](left, right) for each, left, right in pairs)


def _scopes(each: ast.comprehension, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The names visible inside a comprehension, for each item that satisfies its conditions."""
    targets = each.target.elts if isinstance(each.target, ast.Tuple) else [each.target]
    scopes = []
    for item in _value(each.iter, names):
        values = item if isinstance(each.target, ast.Tuple) else [item]
        bound = zip((target.id for target in targets if isinstance(target, ast.Name)), values, strict=True)
        scopes.append({**names, **dict(bound)})
    return [scope for scope in scopes if all(_value(test, scope) for test in each.ifs)]
