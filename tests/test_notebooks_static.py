"""What every notebook must look like before it is run at all."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = sorted(
    path
    for path in (Path(__file__).resolve().parent.parent / "notebooks").glob("**/*.ipynb")
    if ".ipynb_checkpoints" not in path.parts
)
TAGS = {"nbval-ignore-output", "nbval-skip", "raises-exception", "requires-gpu", "requires-weights", "solution"}
UNCOMPARED = {"nbval-ignore-output", "nbval-skip", "requires-gpu", "requires-weights"}
NOT_RUN_EVERYWHERE = {"nbval-skip", "requires-gpu", "requires-weights"}
SECTIONS = {
    "title": r"\A# \S",
    "table of needs": r"(?im)^\|.*gpu.*\|",
    "before": r"(?im)^\W*before\b",
    "after": r"(?im)^\W*after\b",
    "summary": r"(?im)^\W*(in short|summary)\b",
    "recap": r"(?im)^#+ recap\b",
    "exercises": r"(?im)^#+ exercises\b",
    "next": r"(?im)^#+ next\b",
}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|work|tmp|usr|opt|mnt|var|Users)/|\b[A-Z]:\\\\")
MAX_BYTES, MAX_LINES, MIN_COMPARED, MIN_PASS = 1_000_000, 30, 5, 3

Notebook = dict[str, Any]


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def tags_of(cell: dict[str, Any]) -> set[str]:
    return set(cell["metadata"].get("tags", []))


def streams(cell: dict[str, Any]) -> str:
    return "".join(text_of(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def problems(notebook: Notebook) -> list[str]:
    """Everything that is wrong with one notebook, as one line each."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            nbformat.validate(nbformat.from_dict(copy.deepcopy(notebook)))
        except (nbformat.ValidationError, Warning) as error:
            found.append(f"not valid: {str(error).splitlines()[0]}")
    ids = [cell.get("id", "") for cell in notebook["cells"]]
    found += [f"cell id {i!r} is not a stable name" for i in ids if not i or re.fullmatch(r"[0-9a-f]{8}(-.*)?", i)]
    if len(set(ids)) != len(ids):
        found.append("cell ids repeat")

    prose = "\n".join(text_of(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    found += [f"no {name}" for name, pattern in SECTIONS.items() if not re.search(pattern, prose)]
    found += [problem for cell in code_cells(notebook) for problem in cell_problems(cell)]

    run = [cell for cell in code_cells(notebook) if not tags_of(cell) & NOT_RUN_EVERYWHERE]
    counts = [cell["execution_count"] for cell in code_cells(notebook) if cell["execution_count"] is not None]
    if any(cell["execution_count"] is None for cell in run) or counts != list(range(1, len(counts) + 1)):
        found.append(f"execution counts are not 1, 2, 3 …: {counts}")
    compared = [cell for cell in run if not tags_of(cell) & UNCOMPARED and cell["outputs"]]
    if len(compared) < MIN_COMPARED:
        found.append(f"only {len(compared)} cells have an output that is compared")
    if sum(streams(cell).count("PASS") for cell in compared) < MIN_PASS:
        found.append(f"fewer than {MIN_PASS} PASS lines")

    if "widgets" in notebook["metadata"]:
        found.append("widget state is stored")
    if match := MACHINE_PATH.search(json.dumps(notebook["cells"], ensure_ascii=False)):
        found.append(f"a path of one machine: {match[0]}")
    return found


def cell_problems(cell: dict[str, Any]) -> list[str]:
    """What is wrong with one code cell."""
    name, source, tags = cell.get("id"), text_of(cell["source"]), tags_of(cell)
    found = [f"{name}: unknown tag {tag!r}" for tag in tags - TAGS]
    if tags & {"requires-gpu", "requires-weights"} and "nbval-skip" not in tags:
        found.append(f"{name}: needs a GPU or weights but is not tagged nbval-skip")
    if len(source.splitlines()) > MAX_LINES:
        found.append(f"{name}: more than {MAX_LINES} lines")
    if re.search(r"(?m)^\s*(!|%%(bash|sh|script)|%(pip|conda|sx|system))", source):
        found.append(f"{name}: a shell command")
    kinds = {output["output_type"] for output in cell["outputs"]}
    if "error" in kinds and "raises-exception" not in tags:
        found.append(f"{name}: a stored error")
    if any(output.get("name") == "stderr" for output in cell["outputs"]):
        found.append(f"{name}: a stored warning on stderr")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_in_order(path: Path) -> None:
    assert problems(json.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def _first_code(notebook: Notebook) -> dict[str, Any]:
    return code_cells(notebook)[0]


def _strip(notebook: Notebook) -> None:
    for cell in code_cells(notebook):
        cell["outputs"], cell["execution_count"] = [], None


def _no_recap(notebook: Notebook) -> None:
    notebook["cells"] = [c for c in notebook["cells"] if "Recap" not in text_of(c["source"])]


BREAKS: dict[str, tuple[Callable[[Notebook], None], str]] = {
    "repeated id": (lambda nb: nb["cells"][1].update(id=nb["cells"][0]["id"]), "cell ids repeat"),
    "random id": (lambda nb: nb["cells"][1].update(id="0af31b2c"), "not a stable name"),
    "unknown tag": (lambda nb: _first_code(nb)["metadata"].update(tags=["nbval-ignore"]), "unknown tag"),
    "gpu cell that nbval would run": (
        lambda nb: _first_code(nb)["metadata"].update(tags=["requires-gpu"]),
        "not tagged nbval-skip",
    ),
    "stripped": (_strip, "execution counts"),
    "out of order": (lambda nb: _first_code(nb).update(execution_count=99), "execution counts"),
    "long cell": (lambda nb: _first_code(nb).update(source="x = 1\n" * 31), "more than 30 lines"),
    "shell": (lambda nb: _first_code(nb).update(source="!ls"), "a shell command"),
    "pip": (lambda nb: _first_code(nb).update(source="%pip install x"), "a shell command"),
    "machine path": (lambda nb: _first_code(nb).update(source="open('/home/me/x')"), "a path of one machine"),
    "widget state": (lambda nb: nb["metadata"].update(widgets={}), "widget state"),
    "section missing": (_no_recap, "no recap"),
    "stderr": (
        lambda nb: _first_code(nb)["outputs"].append({"output_type": "stream", "name": "stderr", "text": "careful"}),
        "stderr",
    ),
    "error": (
        lambda nb: _first_code(nb)["outputs"].append(
            {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
        ),
        "a stored error",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_check_notices_its_fault(name: str) -> None:
    """The checks themselves: a good notebook, broken in one way, is reported for exactly that."""
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    breaks, report = BREAKS[name]
    breaks(notebook)
    assert any(report in problem for problem in problems(notebook))
