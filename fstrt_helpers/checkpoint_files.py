"""The files of a checkpoint folder: which are missing, which model they belong to, and what is wrong with the weights.

Every check here ends in a :class:`CheckpointError` that lists all problems at once, so one download mends them all.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

__all__ = [
    "CODEC_FILE",
    "CONFIG_FILE",
    "DOWNLOAD_FIX",
    "MODEL_FILE",
    "REPO_ID",
    "REVISION",
    "check_folder",
    "check_state",
    "identify_other_model",
    "read_config",
    "read_weights",
]

CONFIG_FILE = "config.json"
MODEL_FILE = "model.pth"
CODEC_FILE = "firefly-gan-vq-fsq-8x1024-21hz-generator.pth"
TOKENIZER_FILE = "tokenizer.tiktoken"

REPO_ID = "fishaudio/fish-speech-1.5"
REVISION = "275a984d33c33659e39eed41ff5bcd6e67517f4c"
DOWNLOAD_FIX = (
    "python -m fstrt_helpers.download --accept-license\n"
    "       (from Python: fstrt_helpers.download.download_fish_speech(accept_license=True);\n"
    f"       by hand: hf download {REPO_ID} --revision {REVISION} --local-dir outputs/checkpoints/fish-speech-1.5)"
)

_PURPOSE = {
    CONFIG_FILE: "shape of the transformers",
    MODEL_FILE: "weights of the transformers",
    TOKENIZER_FILE: "text to token ids",
    CODEC_FILE: "weights of the codec",
}
# Constants that some files carry and that the modules compute again.
_RECOMPUTED = re.compile(
    r"(?:^|\.)(?:fast_)?(?:freqs_cis|causal_mask)$|(?:^|\.)(?:_levels|_basis|levels|basis|scales|implicit_codebook|window)$"
)
_MAX_SHOWN = 12


def check_folder(folder: Path, fix: str = DOWNLOAD_FIX) -> None:
    """Check that a folder holds the files of Fish Speech 1.5.

    Args:
        folder: The checkpoint folder.
        fix: What brings missing files.

    Raises:
        CheckpointError: If the folder does not exist, belongs to another model, or lacks files (all of them are named).
    """
    if not folder.is_dir():
        what = "is a file, not a checkpoint folder" if folder.exists() else "there is no such checkpoint folder"
        raise CheckpointError(what, where=folder, fix=f"pass 'tiny' or a checkpoint folder, or: {fix}")
    other = identify_other_model(folder)
    if other:
        raise CheckpointError(f"this is not Fish Speech 1.5 but {other}", where=folder, fix=DOWNLOAD_FIX)
    missing = [name for name in _PURPOSE if not (folder / name).is_file()]
    if missing:
        listed = "; ".join(f"{name} ({_PURPOSE[name]})" for name in missing)
        raise CheckpointError(f"files missing: {listed}", where=folder, fix=fix)


def identify_other_model(folder: Path) -> str | None:
    """Name the model a folder belongs to if it is a relative of Fish Speech 1.5.

    Args:
        folder: An existing folder.

    Returns:
        A phrase that names the model and how it was recognised, or None.
    """
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    config = config if isinstance(config, dict) else {}
    if (folder / "codec.pth").is_file() or config.get("attention_qk_norm") or config.get("num_codebooks") == 10:
        sign = "codec.pth" if (folder / "codec.pth").is_file() else "10 codebooks or query-key norm in config.json"
        return f"OpenAudio S1 or a later model with a DAC codec ({sign}); its codec and transformer differ"
    older = sorted(path.name for path in folder.glob("*fsq-[24]x1024*.pth"))
    if older or config.get("num_codebooks") in (2, 4):
        sign = older[0] if older else f"{config['num_codebooks']} codebooks in config.json"
        return f"Fish Speech 1.2 or older ({sign}); 1.5 has 8 codebooks"
    if (folder / "tokenizer.json").is_file() and not (folder / TOKENIZER_FILE).is_file():
        return f"Fish Speech 1.4 (tokenizer.json instead of {TOKENIZER_FILE}); its vocabulary and prompt differ"
    return None


def read_config(path: Path) -> dict[str, Any]:
    """Read `config.json`.

    Args:
        path: The file.

    Returns:
        Its keys and values.

    Raises:
        CheckpointError: If it cannot be read or is no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the configuration cannot be read: {error}", where=path, fix=DOWNLOAD_FIX) from error
    if not isinstance(data, dict):
        raise CheckpointError(
            f"the configuration must be a JSON object, got {type(data).__name__}", where=path, fix=DOWNLOAD_FIX
        )
    return data


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a state dict without running code from the file.

    The file is mapped into memory, not copied, where its format allows it. The `state_dict` of a Lightning checkpoint
    is unwrapped and a `model.` prefix that every name has is removed.

    Args:
        path: A `.pth` file.

    Returns:
        Name to tensor, on the CPU, in the file's own data types.

    Raises:
        CheckpointError: If the file is truncated, is no state dict, or holds anything but tensors.
    """
    _check_container(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "the file asks for Python objects beyond tensors, which are not loaded for safety",
            where=path,
            fix=f"use the official file, or save a plain state dict\n       {DOWNLOAD_FIX}",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"the weights cannot be read: {reason}", where=path, fix=DOWNLOAD_FIX) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError("the file is no state dict (name to tensor)", where=path, fix=DOWNLOAD_FIX)
    if all(name.startswith("model.") for name in state):
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    return dict(state)


def check_state(
    state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], path: Path
) -> dict[str, torch.Tensor]:
    """Compare names and shapes of a state dict with those the configuration asks for.

    Args:
        state: The state dict of the file.
        expected: The state dict of an empty module, of which only names and shapes are used.
        path: The file, for the message.

    Returns:
        The tensors the module needs, in its order.

    Raises:
        CheckpointError: With every missing, unknown and misshapen tensor.
    """
    problems = []
    for name, wanted in expected.items():
        if name not in state:
            problems.append(f"missing: {name} {list(wanted.shape)}")
        elif state[name].shape != wanted.shape:
            problems.append(f"shape: {name} is {list(state[name].shape)}, wanted {list(wanted.shape)}")
        elif not state[name].is_floating_point():
            problems.append(f"type: {name} holds {state[name].dtype}, not floating point")
    unknown = [name for name in state if name not in expected and not _RECOMPUTED.search(name)]
    problems += [f"unknown: {name} {list(state[name].shape)}" for name in unknown]
    if problems:
        if any("lora_" in name for name in unknown):
            fix = "this is a LoRA checkpoint: merge it into its base model first"
        else:
            fix = f"weights and configuration must come from the same folder:\n       {DOWNLOAD_FIX}"
        rest = len(problems) - _MAX_SHOWN
        listed = "\n    ".join(problems[:_MAX_SHOWN] + ([f"and {rest} more"] if rest > 0 else []))
        what = f"{len(problems)} of the weights do not fit the configuration:\n    {listed}"
        raise CheckpointError(what, where=path, fix=fix)
    return {name: state[name] for name in expected}


def _check_container(path: Path) -> None:
    """Tell a truncated or foreign file from a readable one before torch tries, whose messages name neither."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise CheckpointError(f"the weights cannot be read: {error}", where=path, fix=DOWNLOAD_FIX) from error
    if size == 0:
        problem = "the file is empty"
    elif head.startswith(b"version https://git-lfs"):
        problem = "the file is a Git LFS pointer, not the weights: run `git lfs pull`, or download"
    elif head.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(path):
        problem = f"the file is truncated: its end is missing after {size:,} bytes"
    elif not head.startswith((b"PK\x03\x04", b"\x80")):
        problem = f"the file is no PyTorch checkpoint (it begins with {head[:8]!r})"
    else:
        return
    raise CheckpointError(problem, where=path, fix=DOWNLOAD_FIX)
