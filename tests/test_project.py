"""The repository as a whole: pins, documented commands, what may not stand in a tracked file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

REQUIREMENTS = ("requirements.txt", "requirements-nodeps.txt", "requirements-gpu.txt")
NAMED = ("jupyterlab", "torch", "fish-speech", "onnx", "tensorrt", "polygraphy", "pycuda", "ipywidgets", "matplotlib",
         "nbval", "onnxruntime", "tensorrt-rtx")  # fmt: skip
NESTED = "FSTRT_NESTED"  # set while the README's commands run, so that `make test` does not run itself


def pins_of(file: Path) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    needs = [Requirement(line) for line in lines if line]
    return {need.name.lower(): str(need.specifier) for need in needs}


def conda_pins(root: Path) -> dict[str, str]:
    pins = {}
    for entry in yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))["dependencies"]:
        lines = entry["pip"] if isinstance(entry, dict) else [re.sub(r"^([\w-]+)=", r"\1==", entry)]
        pins |= {need.name.lower(): str(need.specifier) for need in map(Requirement, lines)}
    return pins


def readme_commands(root: Path) -> list[str]:
    """Lines of the README's shell blocks that start with make."""
    blocks = re.findall(r"```sh\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("make ")]


def committed_files(root: Path) -> list[Path]:
    """Files that are tracked or would be added."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def test_every_requirement_is_pinned(root: Path) -> None:
    for name in REQUIREMENTS:
        pins = pins_of(root / name)
        assert pins and all(re.fullmatch(r"==[\w.]+", pin) for pin in pins.values()), name


def test_conda_repeats_every_pin(root: Path) -> None:
    conda = conda_pins(root)
    ours = pins_of(root / "requirements.txt") | pins_of(root / "requirements-nodeps.txt")
    assert {name: conda.get(name) for name in ours} == ours
    gpu = pins_of(root / "requirements-gpu.txt")
    assert {name: pin for name, pin in gpu.items() if name in conda and conda[name] != pin} == {}
    assert set(NAMED) <= set(conda)


def test_each_conda_line_says_what_needs_it(root: Path) -> None:
    lines = (root / "environment.yml").read_text(encoding="utf-8").split("dependencies:\n")[1].splitlines()
    wanting = [
        line for line in lines if not line.endswith("pip:") and not re.search(r"# (all|\d\d|tests|m\w+ing)", line)
    ]
    assert wanting == []


def test_this_environment_has_the_pinned_versions(root: Path) -> None:
    from importlib.metadata import version

    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate():
                assert version(need.name) in need.specifier, need


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "torch", "numpy", "onnx", "onnxruntime", "tensorrt", "tensorrt_rtx", "matplotlib", "ipywidgets", "pycuda"
    program = f"import sys, fstrt_helpers; print(fstrt_helpers.__version__, sorted(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+ \[\]\n", done.stdout)


def test_every_module_says_what_it_offers_and_leaves_nothing_unfinished(root: Path) -> None:
    unfinished = re.compile("NotImplemented" + "Error|TO" + "DO|FIX" + "ME")
    for path in sorted((root / "fstrt_helpers").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not text.strip() or text.startswith('"""'), f"{path.name} has no docstring"
        assert path.name == "__init__.py" or "__all__ = " in text, path.name
        assert not unfinished.search(text), path.name


def test_ruff_is_content(root: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_machine_paths_and_no_registry_hosts(root: Path) -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"),
             ("pypi", "nvidia", "com"), ("deb", "debian", "org"), ("anaconda", "org"))]  # fmt: skip
    folders = ["/" + name + "/" for name in ("root", "work")]
    forbidden = re.compile(
        r"(?<![\w.-])(" + "|".join(map(re.escape, hosts)) + r")|(?<![\w.])(" + "|".join(folders) + ")"
    )
    found = []
    for path in committed_files(root):
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            found += [f"{path.relative_to(root)}: {m[0]}" for m in forbidden.finditer(data.decode("utf-8", "replace"))]
    assert found == []


def test_committed_files_are_small_enough_to_clone(root: Path) -> None:
    sizes = {path: path.stat().st_size for path in committed_files(root)}
    assert sum(size for path, size in sizes.items() if (root / "data" / "tiny") in path.parents) <= 32 * 2**20
    assert sum(sizes.values()) < 48 * 2**20


def test_the_readme_gives_two_commands_and_ci_runs_its_test_command(root: Path) -> None:
    assert readme_commands(root)[:2] == ["make tutorial", "make test"]
    assert "make test" in (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert os.access(root / ".ci" / "run", os.X_OK)


def test_the_readme_lists_exactly_the_notebooks_that_exist(root: Path) -> None:
    listed = re.findall(r"\(notebooks/(\w+\.ipynb)\)", (root / "README.md").read_text(encoding="utf-8"))
    assert sorted(set(listed)) == sorted(path.name for path in (root / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
def test_the_readme_commands_really_run(root: Path) -> None:
    """Both commands as the README has them, each narrowed to one piece by the environment."""
    if os.environ.get(NESTED):
        pytest.skip("already inside one of the README's commands")
    environment = {
        **os.environ,
        NESTED: "1",
        "VENV": sys.prefix,
        "NOTEBOOKS": "00",
        "TESTS": "tests/test_tables.py",
    }
    if subprocess.run(["make", "-q", "setup"], cwd=root, env=environment, capture_output=True).returncode != 0:
        pytest.skip("this environment was not made by `make setup`, or is out of date")
    started = time.time()
    logs = {}
    for command in readme_commands(root)[:2]:
        done = subprocess.run(
            command.split(),
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        logs[command] = done.stdout
    assert "passed" in logs["make test"]
    assert "Made under outputs/" in logs["make tutorial"]
    for made in ("index.html", "notebooks/00_environment.ipynb", "notebooks/00_environment.html"):
        assert (root / "outputs" / made).stat().st_mtime > started - 1, made
