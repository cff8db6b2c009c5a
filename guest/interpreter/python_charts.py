"""What a matplotlib figure shows, as numbers: the `chart` of a result.

Reads lines, scatters, bars, pies and box plots from the axes; anything else is of type `unknown`.
Several axes make a `superchart`. At most `ELEMENTS_MAX` marks are read, so that a chart stays small.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Optional

ELEMENTS_MAX = 10_000
_BOXES = "_ramet_boxes"


def chart(figure: Any) -> Optional[dict[str, Any]]:
    """The chart of a figure; None if it is empty."""
    charts = [_axes_chart(axes) for axes in figure.axes if axes.has_data()]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
    return {"type": "superchart", "title": title, "elements": charts}


def remember_boxes() -> None:
    """Let axes keep the numbers of the box plots that are drawn into them."""
    from matplotlib.axes import Axes

    draw = Axes.bxp

    @functools.wraps(draw)
    def draw_and_keep(self: Any, bxpstats: Any, *args: Any, **kwargs: Any) -> Any:
        stats = list(bxpstats)
        setattr(self, _BOXES, stats)
        return draw(self, stats, *args, **kwargs)

    Axes.bxp = draw_and_keep


def _axes_chart(axes: Any) -> dict[str, Any]:
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    title = axes.get_title() or axes.get_title(loc="left") or axes.get_title(loc="right")
    bars = [c for c in axes.containers if isinstance(c, BarContainer)]
    wedges = [p for p in axes.patches if isinstance(p, Wedge)]
    scatters = [c for c in axes.collections if isinstance(c, PathCollection)]
    lines = [line for line in axes.lines if len(line.get_xdata(orig=False))]
    if getattr(axes, _BOXES, None):
        kind, elements = "box_and_whisker", _boxes(getattr(axes, _BOXES))
    elif wedges:
        return {"type": "pie", "title": title, "elements": _wedges(axes, wedges)}
    elif bars:
        kind, elements = "bar", _bars(axes, bars)
    elif scatters:
        kind, elements = "scatter", [_points(axes, s.get_label(), s.get_offsets()) for s in scatters]
    elif lines:
        kind = "line"
        elements = [_points(axes, line.get_label(), line.get_xydata()) for line in lines]
    else:
        kind, elements = "unknown", []
    found = {"type": kind, "title": title, "elements": elements, **_labels(axes)}
    if kind in ("line", "scatter"):
        found.update(_ticks("x", axes.xaxis), **_ticks("y", axes.yaxis))
    return found


def _labels(axes: Any) -> dict[str, Optional[str]]:
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label: str) -> Optional[str]:
    """What stands in brackets at the end of a label: `Time (s)`, `Speed [m/s]`."""
    found = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label)
    return found.group(1).strip() if found else None


def _ticks(name: str, axis: Any) -> dict[str, Any]:
    labels = [label.get_text() for label in axis.get_ticklabels()]
    positions = [float(position) for position in axis.get_ticklocs()]
    scale = _scale(axis)
    ticks: list[Any] = [_place(axis, position) for position in positions] if scale == "datetime" else positions
    return {f"{name}_ticks": ticks, f"{name}_tick_labels": labels, f"{name}_scale": scale}


def _scale(axis: Any) -> str:
    kind = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    if "Date" in kind or "Datetime" in kind:
        return "datetime"
    if "Category" in kind:
        return "categorical"
    return str(axis.get_scale())


def _place(axis: Any, value: Any) -> Any:
    """A coordinate as its axis means it: a number, a moment or the name of a category."""
    number = float(value)
    if not math.isfinite(number):
        return None
    scale = _scale(axis)
    if scale == "datetime":
        from matplotlib.dates import num2date

        return num2date(number).isoformat()
    if scale == "categorical" and number == int(number):
        names = {position: name for name, position in getattr(axis.units, "_mapping", {}).items()}
        return names.get(int(number), number)
    return number


def _points(axes: Any, label: Any, pairs: Any) -> dict[str, Any]:
    points = [[_place(axes.xaxis, x), _place(axes.yaxis, y)] for x, y in list(pairs)[:ELEMENTS_MAX]]
    return {"label": _label(label), "points": points}


def _label(label: Any) -> str:
    """A label that the program gave; matplotlib's own begin with an underscore."""
    text = str(label or "")
    return "" if text.startswith("_") else text


def _bars(axes: Any, containers: list[Any]) -> list[dict[str, Any]]:
    elements: list[dict[str, Any]] = []
    for container in containers:
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        named = dict(zip((float(t) for t in axis.get_ticklocs()), (t.get_text() for t in axis.get_ticklabels())))
        for bar in list(container)[:ELEMENTS_MAX]:
            along = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
            value = bar.get_height() if upright else bar.get_width()
            name = next((text for at, text in named.items() if text and math.isclose(at, along, abs_tol=1e-9)), None)
            label = name if name is not None else str(_place(axis, along))
            elements.append({"label": label, "group": _label(container.get_label()), "value": float(value)})
    return elements


def _wedges(axes: Any, wedges: list[Any]) -> list[dict[str, Any]]:
    return [
        {"label": _label(w.get_label()), "angle": round(abs(w.theta2 - w.theta1), 6), "radius": float(w.r)}
        for w in wedges[:ELEMENTS_MAX]
    ]


def _boxes(stats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "label": str(box.get("label", index + 1)),
            "min": float(box["whislo"]),
            "first_quartile": float(box["q1"]),
            "median": float(box["med"]),
            "third_quartile": float(box["q3"]),
            "max": float(box["whishi"]),
            "outliers": [float(value) for value in box.get("fliers", [])],
        }
        for index, box in enumerate(stats[:ELEMENTS_MAX])
    ]
