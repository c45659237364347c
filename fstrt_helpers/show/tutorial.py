"""Runs the notebooks top to bottom and leaves executed copies, audio and an HTML index under ``outputs/``.

``python -m fstrt_helpers.show.tutorial`` runs all of them, ``… tutorial 00 01`` those whose names begin so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..driver import driver_gpus
from ..errors import ParameterError
from ..measure.records import MEASUREMENTS
from ..tables import html_table, text_table

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Run", "choose", "main", "run_notebook", "write_index"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """What became of one notebook.

    Attributes:
        name: File name without its ending.
        title: First heading of the notebook.
        seconds: Wall-clock time of the run, kernel start included.
        error: Empty, or the cell and the exception that stopped it.
    """

    name: str
    title: str
    seconds: float
    error: str = ""


def choose(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """Notebooks of a folder in order; with ``wanted``, those whose names begin with one of its entries.

    Raises:
        ParameterError: An entry fits no notebook.
    """
    notebooks = sorted(folder.glob("*.ipynb"))
    for start in wanted:
        if not any(path.name.startswith(start) for path in notebooks):
            there = ", ".join(path.stem for path in notebooks) or "none"
            raise ParameterError(f"no notebook begins with {start!r}", where=folder.name, fix=f"choose from: {there}")
    return [path for path in notebooks if not wanted or path.name.startswith(tuple(wanted))]


def run_notebook(path: Path, outputs: Path, *, has_gpu: bool, has_weights: bool) -> Run:
    """Executes one notebook in its own folder and writes the executed copy as ``.ipynb`` and ``.html``.

    Cells tagged ``requires-gpu`` or ``requires-weights`` are left out, and say so, where the machine lacks them.
    A cell that fails ends the notebook; what was executed so far is written all the same.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    _leave_out(notebook, {"requires-gpu": has_gpu, "requires-weights": has_weights})
    started = time.perf_counter()
    cells = len(notebook.cells)

    def progress(cell: NotebookNode, cell_index: int) -> None:
        if sys.stdout.isatty():
            print(f"\r{path.stem}  cell {cell_index + 1}/{cells}", end="", flush=True)

    client = NotebookClient(
        notebook,
        timeout=1800,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # it warns about its own transport otherwise
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=progress,
    )
    error = ""
    try:
        client.execute()
    except CellExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue}"
    except (CellTimeoutError, DeadKernelError) as failure:
        error = str(failure)
    seconds = time.perf_counter() - started
    _write_copies(notebook, outputs / "notebooks" / path.stem)
    print(f"\r{path.stem}  {cells} cells  {seconds:.1f} s  {'FAILED: ' + error if error else 'ok'}", flush=True)
    return Run(path.stem, _title(notebook) or path.stem, seconds, error)


def _leave_out(notebook: NotebookNode, available: dict[str, bool]) -> None:
    """Marks the cells whose tag names something unavailable for nbclient to skip, and says so in their output."""
    from nbformat.v4 import new_output

    for cell in notebook.cells:
        lacking = [tag for tag, there in available.items() if tag in cell.metadata.get("tags", []) and not there]
        if cell.cell_type == "code" and lacking:
            cell.metadata.tags = [*cell.metadata.tags, "skip-execution"]
            cell.outputs = [new_output("stream", name="stdout", text=f"left out here: {', '.join(lacking)}\n")]


def _write_copies(notebook: NotebookNode, stem: Path) -> None:
    import nbformat
    from nbconvert import HTMLExporter

    stem.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, stem.with_suffix(".ipynb"))
    page, _ = HTMLExporter().from_notebook_node(notebook)
    stem.with_suffix(".html").write_text(page, encoding="utf-8")


def _title(notebook: NotebookNode) -> str:
    lines = (line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")


def _measured(outputs: Path) -> list[dict[str, Any]]:
    """Rows that the notebooks measured; none where no notebook that measures has run yet."""
    file = outputs / MEASUREMENTS
    return json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []


def _sounds(outputs: Path) -> list[dict[str, Any]]:
    import soundfile

    found = sorted((outputs / "audio").glob("**/*.wav"))
    infos = [(path, soundfile.info(path)) for path in found]
    return [
        {"audio": path.relative_to(outputs).as_posix(), "seconds": info.duration, "sample rate (Hz)": info.samplerate}
        for path, info in infos
    ]


def write_index(outputs: Path, runs: Sequence[Run]) -> Path:
    """Writes ``index.html``: links to the executed notebooks, a player per WAV file, the measured table."""
    notebooks = "".join(
        f"<li><a href='notebooks/{run.name}.html'>{escape(run.title)}</a> "
        f"({run.seconds:.0f} s{', FAILED: ' + escape(run.error) if run.error else ''})</li>"
        for run in runs
    )
    players = "".join(
        f"<p>{escape(sound['audio'])} ({sound['seconds']:.1f} s)<br>"
        f"<audio controls src='{escape(sound['audio'], quote=True)}'></audio></p>"
        for sound in _sounds(outputs)
    )
    table = html_table(_measured(outputs))
    page = (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Fish Speech to TensorRT</title>"
        "<body style='font-family:sans-serif;max-width:60em;margin:2em auto'><h1>Fish Speech to TensorRT</h1>"
        f"<h2>Notebooks</h2><ol>{notebooks}</ol><h2>Audio</h2>{players}<h2>Measured here</h2>{table}</body></html>"
    )
    index = outputs / "index.html"
    index.write_text(page, encoding="utf-8")
    return index


def _has_weights() -> bool:
    from ..checkpoint import find_checkpoint
    from ..errors import CheckpointError

    try:
        find_checkpoint("fish-speech-1.5")
    except CheckpointError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen notebooks; 0 when every one of them reached its end."""
    parser = argparse.ArgumentParser(prog="python -m fstrt_helpers.show.tutorial", description=__doc__)
    parser.add_argument("notebooks", nargs="*", help="beginnings of notebook names, such as 00; default: all")
    wanted = parser.parse_args(arguments).notebooks
    outputs = ROOT / "outputs"
    try:
        paths = choose(ROOT / "notebooks", wanted)
    except ParameterError as error:
        print(error, file=sys.stderr)
        return 2
    (outputs / "audio").mkdir(parents=True, exist_ok=True)
    has_gpu, has_weights = bool(driver_gpus()[0]), _has_weights()
    runs = [run_notebook(path, outputs, has_gpu=has_gpu, has_weights=has_weights) for path in paths]
    index = write_index(outputs, runs)

    print(f"\nMade under {outputs.name}/:")
    print(f"  {index.relative_to(outputs)}  (open it in a browser)")
    for run in runs:
        print(f"  notebooks/{run.name}.ipynb and .html")
    for title, rows in (("Audio", _sounds(outputs)), ("Measured here", _measured(outputs))):
        if rows:
            print(f"\n{title}:\n{text_table(rows)}")
    return 1 if any(run.error for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
