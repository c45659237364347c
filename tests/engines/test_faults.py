"""Faults that need a process of their own: killed in the middle, a full disk, two at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fstrt_helpers.engines.cache import cached_engine, load_engine_bytes
from fstrt_helpers.engines.lock import file_lock
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.errors import BuildCancelled

from .conftest import SIZES, write_graph

BUILD = """
import pathlib, sys, time
from fstrt_helpers.engines.cache import cached_engine
from fstrt_helpers.engines.profile import default_profile

folder, go = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
path = folder / "graphs" / "little.onnx"
profile = default_profile(path, sizes={"B": (1, 1, 8)})

def hold():  # called in the builder's thread before each of its steps
    (folder / "building").touch()
    while not go.exists():
        time.sleep(0.01)
    return False

try:
    made = cached_engine(
        path, profile, precision="float16", flavour="tensorrt_rtx", folder=folder / "engines", cancel=hold
    )
    print("built" if made.built else "kept", made.why)
except Exception as error:
    print(type(error).__name__, error)
"""

resource = pytest.importorskip("resource", reason="needs a system with process limits and signals")
pytestmark = pytest.mark.usefixtures("rtx")


def start(folder: Path, go: Path, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder), str(go)], stdout=subprocess.PIPE, text=True, **options
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def engines(folder: Path) -> list[str]:
    return sorted(
        p.name for p in (folder / "engines").rglob("*") if p.is_file() and p.suffix not in (".lock", ".sha256")
    )


def get(folder: Path, rtx, **options):
    path = folder / "graphs" / "little.onnx"
    profile = default_profile(path, sizes=SIZES)
    return cached_engine(path, profile, precision="float16", flavour=rtx, folder=folder / "engines", **options)


def test_killed_in_the_middle_of_a_build(rtx, tmp_path):
    write_graph(tmp_path / "graphs")
    process = start(tmp_path, tmp_path / "never")
    wait_for(tmp_path / "building", process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()
    assert engines(tmp_path) == []
    found = get(tmp_path, rtx)  # the lock died with its holder
    assert found.built and found.why == "there is no engine"


def test_a_full_disk_keeps_the_old_engine_and_says_so(rtx, tmp_path):
    """The limit of the file size stands for a full disk: both make the write fail half way."""
    write_graph(tmp_path / "graphs")
    first = get(tmp_path, rtx)
    before = first.path.read_bytes()
    write_graph(tmp_path / "graphs", seed=1)
    (tmp_path / "go").touch()
    limit = len(before) // 2
    process = start(
        tmp_path,
        tmp_path / "go",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    said, _ = process.communicate(timeout=60)
    assert "EngineError the engine of 0.0 MB cannot be written: File too large" in said
    assert "free some space" in said
    assert first.path.read_bytes() == before
    assert engines(tmp_path) == ["little.engine", "little.engine.json"]
    assert get(tmp_path, rtx).why == "other content than the engine was built from: little.data"


def test_two_processes_build_the_same_engine_once(tmp_path):
    write_graph(tmp_path / "graphs")
    go = tmp_path / "go"
    first = start(tmp_path, go)
    wait_for(tmp_path / "building", first)
    second = start(tmp_path, go)
    second_waits = tmp_path / "engines" / "float16" / ".little.engine.lock"
    wait_for(second_waits, second)
    time.sleep(1.0)  # the second one has imported everything and waits for the lock; if not, it finds the engine
    go.touch()
    said = [process.communicate(timeout=60)[0].strip() for process in (first, second)]
    assert said[0] == "built there is no engine"
    assert said[1] in ("kept another process has just built it", "kept key and hash agree")
    assert load_engine_bytes(tmp_path / "engines" / "float16" / "little.engine", flavour="tensorrt_rtx")


def test_waiting_for_another_build_can_be_watched_and_cancelled(rtx, tmp_path):
    write_graph(tmp_path / "graphs")
    lock = tmp_path / "engines" / "float16" / ".little.engine.lock"
    events = []
    with file_lock(lock) as waited:
        assert not waited
        with pytest.raises(BuildCancelled, match="another process was building"):
            get(tmp_path, rtx, progress=lambda *e: events.append(e), cancel=lambda: len(events) >= 2)
    assert events == [("Waiting for another build of this engine", 0, 1)] * 2
    assert engines(tmp_path) == []


def test_threads_of_one_process_build_one_after_the_other(rtx, tmp_path):
    found, names = [], ("one", "two", "two")
    for name in set(names):
        write_graph(tmp_path / name / "graphs")
    threads = [threading.Thread(target=lambda n=name: found.append(get(tmp_path / n, rtx))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(engine.built for engine in found) == [False, True, True]
    assert all(load_engine_bytes(engine.path, flavour=rtx) for engine in found)
