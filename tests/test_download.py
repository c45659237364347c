"""The download against a hub on this machine: resume, checksums, faults. Nothing leaves 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fstrt_helpers import download
from fstrt_helpers.checkpoint import CODEC_FILE, find_checkpoint
from fstrt_helpers.checkpoint_files import REPO_ID, REVISION
from fstrt_helpers.download import download_fish_speech
from fstrt_helpers.errors import DownloadError, ParameterError

from .checkpoints import write_random_checkpoint
from .hub import COMMIT, Hub, serve


@pytest.fixture(scope="session")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_random_checkpoint(tmp_path_factory.mktemp("served") / "random")
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"README.md": b"# A small model\n"}


@pytest.fixture
def hub(contents: dict[str, bytes]) -> Iterator[Hub]:
    with serve(contents) as hub:
        yield hub


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client writes whole chunks, of 10 MB by default: more than the test's files."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)


def asked_ranges(hub: Hub, name: str) -> list[str | None]:
    return [asked for method, file, asked in hub.requests if (method, file) == ("GET", name)]


def fetch(hub: Hub, folder: Path, **options: Any) -> Path:
    options = (
        dict(accept_license=True, repo_id=hub.repo_id, revision="main", endpoint=hub.endpoint, attempts=1) | options
    )
    return download_fish_speech(folder, **options)


def test_downloads_a_checkpoint_that_loads(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fetch(hub, tmp_path / "new" / "folder")
    for name, content in hub.files.items():
        assert (folder / name).read_bytes() == content
    assert find_checkpoint(folder).load_dual_ar().config.n_layer == 2
    record = json.loads((folder / "download.json").read_text())
    assert (record["repo_id"], record["revision"], record["commit"]) == (hub.repo_id, "main", COMMIT)
    assert "CC BY-NC-SA 4.0" in record["licence"]
    assert record["files"]["model.pth"] == {
        "bytes": len(hub.files["model.pth"]),
        "sha256": hashlib.sha256(hub.files["model.pth"]).hexdigest(),
    }
    printed = capsys.readouterr().out
    assert "CC BY-NC-SA 4.0" in printed and "checked model.pth" in printed


def test_the_licence_must_be_accepted(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="licence") as caught:
        fetch(hub, tmp_path / "folder", accept_license=False)
    assert "accept_license=True" in str(caught.value) and "CC BY-NC-SA 4.0" in str(caught.value)
    assert not (tmp_path / "folder").exists() and not hub.requests


@pytest.mark.usefixtures("small_chunks")
def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cuts["model.pth"] = [10_000]
    folder = fetch(hub, tmp_path / "folder")
    assert (folder / "model.pth").read_bytes() == hub.files["model.pth"]
    assert asked_ranges(hub, "model.pth") == [None, "bytes=10000-"]


@pytest.mark.usefixtures("small_chunks")
def test_a_later_call_goes_on_where_an_earlier_one_failed(hub: Hub, tmp_path: Path) -> None:
    hub.cuts["model.pth"] = [10_000] + [0] * 20
    with pytest.raises(DownloadError, match="cannot be reached"):
        fetch(hub, tmp_path / "folder")
    assert not (tmp_path / "folder" / "model.pth").exists()
    hub.cuts.clear()
    hub.requests.clear()
    folder = fetch(hub, tmp_path / "folder")
    assert (folder / "model.pth").read_bytes() == hub.files["model.pth"]
    assert asked_ranges(hub, "model.pth") == ["bytes=10000-"]
    assert not list(folder.glob(".*.part"))


@pytest.mark.usefixtures("small_chunks")
def test_a_part_of_something_else_is_not_continued(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    part = folder / f".model.pth.{COMMIT[:12]}.part"
    part.write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match=r"checksum of model\.pth"):
        fetch(hub, folder)
    assert not part.exists()
    part.write_bytes(b"x" * (len(hub.files["model.pth"]) + 1))
    fetch(hub, folder)
    assert (folder / "model.pth").read_bytes() == hub.files["model.pth"]


def test_attempts_are_taken_up_again(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.time, "sleep", lambda seconds: hub.statuses.clear())
    hub.statuses["model.pth"] = 500
    fetch(hub, tmp_path / "folder", attempts=2)
    assert (tmp_path / "folder" / "model.pth").read_bytes() == hub.files["model.pth"]


def test_a_second_call_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "folder")
    hub.requests.clear()
    fetch(hub, tmp_path / "folder")
    assert not hub.requests


def test_a_file_damaged_later_is_replaced(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fetch(hub, tmp_path / "folder")
    (folder / "model.pth").write_bytes(b"truncated")
    fetch(hub, folder)
    assert (folder / "model.pth").read_bytes() == hub.files["model.pth"]
    assert "model.pth is damaged and is downloaded again" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model.pth", "config.json"])
def test_wrong_content_is_refused_and_removed(hub: Hub, tmp_path: Path, name: str) -> None:
    """Both kinds of checksum: SHA-256 of a large file, git blob id of a small one."""
    content = hub.files[name]
    hub.stated[name] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(DownloadError, match=rf"checksum of {name} differs from the hub's") as caught:
        fetch(hub, tmp_path / "folder")
    assert "call again" in str(caught.value)
    assert not (tmp_path / "folder" / name).exists()
    del hub.stated[name]
    assert (fetch(hub, tmp_path / "folder") / name).read_bytes() == content


def test_our_own_checksums_are_compared_too(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="differs from ours: wanted 00ff"):
        fetch(hub, tmp_path / "folder", expected_sha256={"model.pth": "00ff"})
    good = {name: hashlib.sha256(content).hexdigest() for name, content in hub.files.items()}
    fetch(hub, tmp_path / "folder", expected_sha256=good)


def test_unknown_repository(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="no such repository, revision or file") as caught:
        fetch(hub, tmp_path / "folder", repo_id="someone/else")
    assert "someone/else@main" in str(caught.value) and REPO_ID in str(caught.value)


def test_unknown_revision(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="no such repository, revision or file"):
        fetch(hub, tmp_path / "folder", revision="v99")


def test_file_that_is_listed_but_gone(hub: Hub, tmp_path: Path) -> None:
    hub.statuses[CODEC_FILE] = 404
    with pytest.raises(DownloadError, match="no such") as caught:
        fetch(hub, tmp_path / "folder")
    assert CODEC_FILE in str(caught.value)


def test_repository_without_the_codec(hub: Hub, tmp_path: Path) -> None:
    del hub.files[CODEC_FILE]
    with pytest.raises(DownloadError, match=f"lacks {CODEC_FILE}"):
        fetch(hub, tmp_path / "folder")
    assert not [name for _, name, _ in hub.requests]


@pytest.mark.parametrize(("status", "message"), [(401, "refuses access"), (403, "refuses access"), (500, "status 500")])
def test_other_statuses(hub: Hub, tmp_path: Path, status: int, message: str) -> None:
    hub.statuses["info"] = status
    with pytest.raises(DownloadError, match=message):
        fetch(hub, tmp_path / "folder")


def test_server_down(hub: Hub, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(DownloadError, match="cannot be reached") as caught:
        fetch(hub, tmp_path / "folder", endpoint=endpoint)
    assert endpoint in str(caught.value) and "mirror" in str(caught.value)


def test_full_disk_is_seen_before_the_download(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))
    with pytest.raises(DownloadError, match="are needed"):
        fetch(hub, tmp_path / "folder")
    assert not hub.requests


def test_command_line(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert download.main(["--folder", str(tmp_path / "folder")]) == 1
    assert "--accept-license" in capsys.readouterr().err
    monkeypatch.setattr(
        download.download_fish_speech,
        "__kwdefaults__",
        {
            **download.download_fish_speech.__kwdefaults__,
            "repo_id": hub.repo_id,
        },
    )
    arguments = ["--folder", str(tmp_path / "folder"), "--accept-license", "--endpoint", hub.endpoint]
    assert download.main([*arguments, "--revision", "v99"]) == 1
    assert "no such" in capsys.readouterr().err
    assert download.main([*arguments, "--revision", COMMIT]) == 0
    assert "ready" in capsys.readouterr().out
    assert find_checkpoint(tmp_path / "folder").config.dim == 32


def test_the_default_is_a_commit_with_known_checksums() -> None:
    assert len(REVISION) == 40 and int(REVISION, 16)
    assert set(download.SHA256) == {"model.pth", CODEC_FILE}
    assert all(len(value) == 64 and int(value, 16) for value in download.SHA256.values())
    assert download.DEFAULT_FOLDER.parts[-3:] == ("outputs", "checkpoints", "fish-speech-1.5")
