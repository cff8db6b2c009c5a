"""How a Python context shows values: results in all their forms, figures, tables.

IPython computes a bundle of forms by media type; here it becomes one `result` event with the names of
the protocol. Two forms are added: the columns of a pandas table (`data`) and what a matplotlib figure
shows (`chart`, python_charts.py). Figures are shown by `plt.show()` and at the end of the code, and closed.
"""

from __future__ import annotations

import base64
import datetime
import importlib.abc
import importlib.machinery
import io
import math
import sys
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import ObjectName, Unicode

import python_charts
from python_output import Output

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.ramet.data+json": "data",
    "application/vnd.ramet.chart+json": "chart",
}
ROWS_MAX = 10_000

output: Output
"""Where results go; set once by the context, before the shell is made."""


def emit(bundle: dict[str, Any], main: bool) -> None:
    """Say a bundle as a result."""
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for media, value in bundle.items():
        if value is None:
            continue
        if isinstance(value, (bytes, bytearray)):
            value = base64.b64encode(value).decode("ascii")
        elif media.startswith("image/") and media != "image/svg+xml" and isinstance(value, str):
            value = value.replace("\n", "")
        name = FIELDS.get(media)
        (fields if name else extra)[name or media] = value
    text = fields.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        fields["text"] = text[1:-1]  # A string is shown as it is, as clients of the protocol expect.
    if extra:
        fields["extra"] = extra
    output.event("result", is_main_result=main, **fields)


class Publisher(DisplayPublisher):
    """`display()`."""

    def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
        """Say what is displayed."""
        emit(data, False)

    def clear_output(self, wait: bool = False) -> None:
        """Nothing: what was said cannot be taken back."""


class Hook(DisplayHook):
    """The value of the last expression."""

    def write_output_prompt(self) -> None:
        """There is no prompt."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        """Say it."""
        emit(format_dict, True)

    def finish_displayhook(self) -> None:
        """Nothing is left to write."""
        self._is_active = False


class DataFormatter(BaseFormatter):
    """The columns of a table of pandas."""

    format_type = Unicode("application/vnd.ramet.data+json")
    print_method = ObjectName("_repr_ramet_data_")

    def __call__(self, value: Any) -> Optional[dict[str, Any]]:
        """The form of a value, if it has one."""
        pandas = sys.modules.get("pandas")
        kind = getattr(pandas, "DataFrame", None)
        if kind is None or not isinstance(value, kind) or len(value) > ROWS_MAX:
            return None
        try:
            columns = value.to_dict(orient="list")
            return {str(name): [plain(cell) for cell in cells] for name, cells in columns.items()}
        except Exception:
            return None


class ChartFormatter(BaseFormatter):
    """What a figure of matplotlib shows."""

    format_type = Unicode("application/vnd.ramet.chart+json")
    print_method = ObjectName("_repr_ramet_chart_")

    def __call__(self, value: Any) -> Optional[dict[str, Any]]:
        """The form of a value, if it has one."""
        kind = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if kind is None or not isinstance(value, kind):
            return None
        try:
            return python_charts.chart(value)
        except Exception:
            return None


def plain(value: Any) -> Any:
    """A cell as JSON can say it."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def png(figure: Any) -> bytes:
    """A figure as a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight", dpi=figure.dpi)
    return picture.getvalue()


def install(shell: InteractiveShell) -> None:
    """Add the forms that IPython has not, and wait for matplotlib."""
    formatters = shell.display_formatter.formatters
    formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", png)
    for added in (DataFormatter(parent=shell.display_formatter), ChartFormatter(parent=shell.display_formatter)):
        formatters[added.format_type] = added
    sys.meta_path.insert(0, _AfterImport("matplotlib.pyplot", _prepare))


def _prepare(pyplot: ModuleType) -> None:
    """Make `show` show, and let box plots keep the numbers that they draw."""
    pyplot.show = lambda *_, **__: show_figures()
    python_charts.remember_boxes()


def show_figures() -> None:
    """Show all open figures, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if not hasattr(pyplot, "get_fignums"):
        return
    try:
        for number in pyplot.get_fignums():
            bundle, _ = InteractiveShell.instance().display_formatter.format(pyplot.figure(number))
            emit(bundle, False)
    finally:
        pyplot.close("all")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module when it has been imported for the first time."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """The spec that others find, with a loader that calls the function at the end."""
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            self._act(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
