"""The variables of a Python context, described without running any of their code.

Values of built-in types are written out, shortened; arrays and tables say their shape and a first glimpse
of numbers; of everything else only the type is said. No method of a user's class is ever called, so a
listing neither hangs nor changes anything, and two equal states are listed equally: no addresses.
"""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

VARIABLES_MAX = 1000
VALUE_CHARS_MAX = 200
ITEMS_MAX = 50
DEPTH_MAX = 4
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def listing(namespace: dict[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
    """All variables that user code has made, by name."""
    found = dict(namespace)  # At once, while other threads may change it.
    names = sorted(n for n in found if type(n) is str and not n.startswith("_") and n not in hidden)
    variables = [_describe(name, found[name]) for name in names[:VARIABLES_MAX]]
    return {"variables": variables, "truncated": len(names) > VARIABLES_MAX}


def _describe(name: str, value: Any) -> dict[str, str]:
    kind = "value"
    if isinstance(value, types.ModuleType):
        kind = "module"
    elif type(value) in FUNCTIONS:
        kind = "function"
    elif issubclass(type(value), type):
        kind = "class"
    text = short(value)
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 1] + "…"
    return {"name": name, "type": _type_name(type(value)), "kind": kind, "value": text}


def _type_name(kind: type) -> str:
    module = type.__dict__["__module__"].__get__(kind) if "__module__" in kind.__dict__ else "builtins"
    name = type.__dict__["__qualname__"].__get__(kind)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def short(value: Any, depth: int = DEPTH_MAX) -> str:
    """A value in a few words."""
    kind = type(value)
    if kind in (int, float, complex, bool, type(None), type(...)):
        return _number(value)
    if kind in (str, bytes):
        return repr(value[: VALUE_CHARS_MAX + 1])
    if kind in (list, tuple, set, frozenset, dict):
        return _collection(value, depth)
    if issubclass(kind, types.ModuleType):
        return f"<module {value.__dict__.get('__name__')}>"
    if kind in FUNCTIONS:
        return f"<function {getattr(value, '__qualname__', '?')}>"
    if issubclass(kind, type):
        return f"<class {_type_name(value)}>"
    return _known(value) or f"<{_type_name(kind)}>"


def _number(value: Any) -> str:
    if type(value) is int and value.bit_length() > 600:
        return f"<int of {value.bit_length()} bits>"
    return repr(value)


def _collection(value: Any, depth: int) -> str:
    kind = type(value)
    if depth == 0:
        return f"<{kind.__name__} of {len(value)}>"
    try:
        items = list(itertools.islice(value.items() if kind is dict else value, ITEMS_MAX))
    except RuntimeError:  # It changes while it is read.
        return f"<{kind.__name__} of {len(value)}>"
    if kind is dict:
        parts = [f"{short(key, depth - 1)}: {short(item, depth - 1)}" for key, item in items]
    else:
        parts = [short(item, depth - 1) for item in items]
    if kind in (set, frozenset):
        parts.sort()
    if len(value) > ITEMS_MAX:
        parts.append(f"… {len(value)} in all")
    inner = ", ".join(parts)
    if kind is tuple:
        return f"({inner},)" if len(parts) == 1 else f"({inner})"
    if kind is list:
        return f"[{inner}]"
    if kind is dict:
        return f"{{{inner}}}"
    return f"{kind.__name__}({{{inner}}})" if kind is frozenset else f"{{{inner}}}" if parts else "set()"


def _known(value: Any) -> str:
    """Values of numpy and pandas, of exactly their types, which cannot hold a user's methods where it is looked."""
    kind = type(value)
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    try:
        if numpy is not None and issubclass(kind, numpy.generic) and kind.__module__ == "numpy":
            return "" if kind is numpy.void else repr(value.item())[:VALUE_CHARS_MAX]
        if numpy is not None and kind is numpy.ndarray:
            head = f"<array {value.shape} of {value.dtype}>"
            if value.dtype.kind not in "biufc":
                return head
            glimpse = ", ".join(_number(item) for item in value.ravel()[:8].tolist())
            return f"{head} [{glimpse}{', …' if value.size > 8 else ''}]"
        if pandas is not None and kind is pandas.DataFrame:
            columns = ", ".join(short(name) for name in list(value.columns[:8]))
            return f"<table of {value.shape[0]} rows and {value.shape[1]} columns: {columns}>"
        if pandas is not None and kind is pandas.Series:
            return f"<series of {value.shape[0]}, {value.dtype}>"
    except Exception:
        pass
    return ""
