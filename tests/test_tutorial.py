"""The runner behind `make tutorial`, on notebooks of a few cells."""

from __future__ import annotations

import wave
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.show import tutorial


def write_notebook(path: Path, *cells: str | tuple[str, str]) -> Path:
    """A notebook with a heading; a cell is its source, or its source and a tag."""
    notebook = new_notebook(cells=[new_markdown_cell("# A <title>\n\nProse.")])
    for cell in cells:
        source, tags = (cell, []) if isinstance(cell, str) else (cell[0], [cell[1]])
        notebook.cells.append(new_code_cell(source, metadata={"tags": tags}))
    nbformat.write(notebook, path)
    return path


def outputs_of(path: Path) -> str:
    return "".join(
        output.get("text", "") for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])
    )


def test_choosing_by_number(tmp_path: Path) -> None:
    for name in ("00_a", "01_b", "10_c"):
        write_notebook(tmp_path / f"{name}.ipynb")
    assert [path.stem for path in tutorial.choose(tmp_path, [])] == ["00_a", "01_b", "10_c"]
    assert [path.stem for path in tutorial.choose(tmp_path, ["10", "00"])] == ["00_a", "10_c"]
    with pytest.raises(ParameterError, match="'07'"):
        tutorial.choose(tmp_path, ["07"])


def test_a_run_happens_in_the_notebooks_folder_and_leaves_two_copies(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    path = write_notebook(
        tmp_path / "notebooks" / "00_a.ipynb",
        "import pathlib; print(pathlib.Path.cwd().name)",
        ("raise ValueError('on purpose')", "raises-exception"),
        ("print('on a GPU')", "requires-gpu"),
        ("print('with weights')", "requires-weights"),
    )
    run = tutorial.run_notebook(path, tmp_path / "outputs", has_gpu=False, has_weights=True)
    assert (run.name, run.title, run.error) == ("00_a", "A <title>", "")
    executed = outputs_of(tmp_path / "outputs" / "notebooks" / "00_a.ipynb")
    assert executed == "notebooks\nleft out here: requires-gpu\nwith weights\n"
    assert "on purpose" in (tmp_path / "outputs" / "notebooks" / "00_a.html").read_text(encoding="utf-8")
    assert outputs_of(path) == "", "the notebook itself must stay as it was"


def test_a_failing_cell_is_reported_and_the_copy_is_kept(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "00_a.ipynb", "print('first')", "1 / 0", "print('never')")
    run = tutorial.run_notebook(path, tmp_path / "outputs", has_gpu=False, has_weights=False)
    assert run.error.startswith("ZeroDivisionError")
    assert outputs_of(tmp_path / "outputs" / "notebooks" / "00_a.ipynb") == "first\n"


def test_the_index_has_a_link_per_notebook_a_player_per_sound_and_the_table(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    with wave.open(str(tmp_path / "audio" / "hello.wav"), "wb") as sound:
        sound.setparams((1, 2, 44_100, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 44_100))
    (tmp_path / tutorial.MEASUREMENTS).write_text('{"schema": 1, "rows": [{"stage": "codec", "ms": 5.5}]}')
    runs = [tutorial.Run("00_a", "A <title>", 3.2), tutorial.Run("01_b", "B", 1.0, "ZeroDivisionError: <0>")]
    page = tutorial.write_index(tmp_path, runs).read_text(encoding="utf-8")
    assert "href='notebooks/00_a.html'" in page and "A &lt;title&gt;" in page
    assert "FAILED: ZeroDivisionError: &lt;0&gt;" in page
    assert "<audio controls src='audio/hello.wav'>" in page and "(1.0 s)" in page
    assert ">codec<" in page and ">5.5<" in page


def test_an_unknown_notebook_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert tutorial.main(["99"]) == 2
    assert "choose from: 00_environment" in capsys.readouterr().err
