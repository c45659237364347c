"""Download Fish Speech 1.5 from the Hugging Face Hub: resumable, at a pinned revision, every file checked.

Run `python -m fstrt_helpers.download --accept-license`, or call :func:`download_fish_speech`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint_files import CODEC_FILE, CONFIG_FILE, MODEL_FILE, REPO_ID, REVISION, TOKENIZER_FILE
from .errors import DownloadError, FstrtError, ParameterError

__all__ = ["DEFAULT_FOLDER", "LICENCE", "SHA256", "cached_folder", "download_fish_speech", "main"]

LICENCE = (
    "CC BY-NC-SA 4.0 (https://creativecommons.org/licenses/by-nc-sa/4.0/): "
    "name Fish Audio, no commercial use, share alike"
)
# SHA-256 of the two large files at REVISION, checked beside what the server itself states.
SHA256: Mapping[str, str] = {
    MODEL_FILE: "918dc960372cc1b77bbafb14c48ef7a1634ecf75d4eb85b78607223b780d6001",
    CODEC_FILE: "01b81dbf753224a156c3fe139b88bf0b9a0f54b11bee864f95e66511c3ccd754",
}
RECORD_FILE = "download.json"
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "outputs" / "checkpoints" / "fish-speech-1.5"

_REQUIRED = (CONFIG_FILE, TOKENIZER_FILE, CODEC_FILE, MODEL_FILE)
_OPTIONAL = ("special_tokens.json", "README.md")


def download_fish_speech(
    folder: str | Path | None = None,
    *,
    accept_license: bool = False,
    repo_id: str = REPO_ID,
    revision: str = REVISION,
    endpoint: str | None = None,
    expected_sha256: Mapping[str, str] | None = None,
    attempts: int = 3,
) -> Path:
    """Download the official checkpoint, 1.47 GB, into a folder that `find_checkpoint` finds.

    An interrupted download goes on where it stopped, in the same call or a later one. Each file is compared with the
    checksum the server states, the two large ones also with those known here, before it gets its name. What was
    downloaded is recorded in `download.json` beside the files. Progress bars go to stderr.

    Args:
        folder: Where the files go; by default `outputs/checkpoints/fish-speech-1.5`.
        accept_license: Must be true: the weights are CC BY-NC-SA 4.0, so not for commercial use.
        repo_id: Repository on the hub.
        revision: Commit, tag or branch. The default is a commit, so the files can never change.
        endpoint: Address of the hub or a mirror; by default the one of `huggingface_hub`.
        expected_sha256: File name to SHA-256; by default `SHA256` for the pinned revision of the official repository.
        attempts: How often a broken connection is taken up again before giving up.

    Returns:
        The folder.

    Raises:
        ParameterError: If the licence was not accepted.
        DownloadError: If the server cannot be reached, lacks the repository or a file, the disk is too small, or a
            checksum differs.
    """
    from huggingface_hub import hf_hub_url

    print(f"{repo_id}: licence {LICENCE}")
    if not accept_license:
        raise ParameterError(
            "the licence of the weights must be accepted before they are downloaded",
            where=LICENCE,
            fix="pass accept_license=True (on the command line: --accept-license)",
        )
    folder = DEFAULT_FOLDER if folder is None else Path(folder).expanduser()
    if expected_sha256 is None:
        expected_sha256 = SHA256 if (repo_id, revision) == (REPO_ID, REVISION) else {}
    commit, remote = _list_files(repo_id, revision, endpoint)
    wanted = [name for name in (*_REQUIRED, *_OPTIONAL) if name in remote]
    missing = [name for name in _REQUIRED if name not in remote]
    if missing:
        raise DownloadError(
            f"the repository lacks {', '.join(missing)}", where=f"{repo_id}@{commit}", fix=f"use {REPO_ID}@{REVISION}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(folder, {name: remote[name] for name in wanted})
    record: dict[str, Any] = {}
    for name in wanted:
        url = hf_hub_url(repo_id, name, revision=commit, endpoint=endpoint)
        sha256 = _fetch(url, folder / name, remote[name], expected_sha256.get(name), commit, attempts)
        record[name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256}
        print(f"checked {name}: {record[name]['bytes']:,} bytes, sha256 {sha256[:16]}...")
    origin = {"repo_id": repo_id, "revision": revision, "commit": commit, "licence": LICENCE}
    _write_record(folder, {**origin, "files": record})
    return folder


def cached_folder() -> Path | None:
    """Return the folder of the pinned revision in the Hugging Face cache if its weights are there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(REPO_ID, MODEL_FILE, revision=REVISION)
    return Path(found).parent if isinstance(found, str) else None


def _list_files(repo_id: str, revision: str, endpoint: str | None) -> tuple[str, dict[str, Any]]:
    """Return the commit behind a revision and, per file, the hub's metadata (size, blob id, LFS checksum)."""
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=endpoint).model_info(repo_id, revision=revision, files_metadata=True, timeout=20)
    except Exception as error:  # the hub client raises errors of several libraries
        server = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        raise _explain(error, f"{repo_id}@{revision} at {server}") from error
    return info.sha or revision, {sibling.rfilename: sibling for sibling in info.siblings or ()}


def _fetch(url: str, path: Path, remote: Any, expected: str | None, commit: str, attempts: int) -> str:
    """Bring one file into place unless it is there and sound. Return its SHA-256.

    `hf_hub_download` throws away what it has when a call fails, so the client's own `http_get` writes into a part file
    here, which the next call continues.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if path.is_file():
        sha256, difference = _compare(path, remote, expected)
        if not difference:
            return sha256
        print(f"{path.name} is damaged and is downloaded again: {difference}")
    part = path.with_name(f".{path.name}.{commit[:12]}.part")
    if part.is_file() and part.stat().st_size > (remote.size or 0):
        part.unlink()
    for attempt in range(1, attempts + 1):
        try:
            with part.open("ab") as file:
                http_get(
                    url,
                    file,
                    resume_size=part.stat().st_size,
                    headers=build_hf_headers(),
                    expected_size=remote.size,
                    displayed_filename=path.name,
                )
            break
        except Exception as error:  # the hub client raises errors of several libraries
            if attempt == attempts or _status(error) in (401, 403, 404):
                raise _explain(error, url) from error
            time.sleep(min(2 ** (attempt - 1), 10))
    sha256, difference = _compare(part, remote, expected)
    if difference:
        part.unlink()
        raise DownloadError(
            f"the checksum of {path.name} differs from {difference}",
            where=url,
            fix="the damaged download was deleted: call again to start it afresh",
        )
    os.replace(part, path)
    return sha256


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _explain(error: Exception, where: str) -> DownloadError:
    status = _status(error)
    if status in (401, 403):
        what, fix = "the hub refuses access", "run `hf auth login` with an account that may read the repository"
    elif status == 404:
        what, fix = "the hub has no such repository, revision or file", f"use {REPO_ID}@{REVISION}"
    elif status is not None:
        what, fix = f"the hub answered with status {status}", "try again later; what was downloaded is kept"
    else:
        reason = (str(error).splitlines() or [""])[0]
        what = f"the hub cannot be reached ({type(error).__name__}: {reason})"
        fix = "check the network, or name a mirror with endpoint= or HF_ENDPOINT; a new call resumes"
    return DownloadError(what, where=where, fix=fix)


def _check_space(folder: Path, files: Mapping[str, Any]) -> None:
    needed = sum(file.size or 0 for name, file in files.items() if not (folder / name).is_file())
    free = shutil.disk_usage(folder).free
    if free < needed:
        what = f"{needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free"
        raise DownloadError(what, where=folder, fix="free space, or pass folder=")


def _compare(path: Path, remote: Any, expected: str | None) -> tuple[str, str]:
    """Return the SHA-256 of a file, and in words how it differs from the hub's checksum or ours ('' if not)."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            blob.update(chunk)
    got = sha256.hexdigest()
    # Of a small file the hub states the id that git gives its content.
    hubs = (remote.lfs.sha256, got) if remote.lfs is not None else (remote.blob_id, blob.hexdigest())
    for whose, (wanted, found) in {"ours": (expected, got), "the hub's": hubs}.items():
        if wanted and wanted != found:
            return got, f"{whose}: wanted {wanted}, got {found} of {size:,} bytes"
    return got, ""


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    draft = folder / f".{RECORD_FILE}.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, folder / RECORD_FILE)


def main(arguments: list[str] | None = None) -> int:
    """Run the download from the command line.

    Args:
        arguments: Command-line arguments; by default those of the process.

    Returns:
        The exit status.
    """
    about = f"Download {REPO_ID}, 1.47 GB."
    parser = argparse.ArgumentParser(prog="python -m fstrt_helpers.download", description=about)
    parser.add_argument("--folder", type=Path, default=None, help="where the files go (default: outputs/checkpoints)")
    parser.add_argument("--accept-license", action="store_true", help=f"accept {LICENCE}")
    parser.add_argument("--revision", default=REVISION, help="commit, tag or branch (default: the pinned commit)")
    parser.add_argument("--endpoint", default=None, help="address of a mirror")
    options = parser.parse_args(arguments)
    try:
        folder = download_fish_speech(
            options.folder, accept_license=options.accept_license, revision=options.revision, endpoint=options.endpoint
        )
    except FstrtError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ready: {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
