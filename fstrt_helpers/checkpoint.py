"""Find, check and load a checkpoint folder in Fish Speech 1.5's official layout.

A folder holds ``config.json``, ``model.pth`` (the two transformers), ``tokenizer.tiktoken``,
``special_tokens.json`` (absent in older folders) and the codec's ``.pth`` file.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .checkpoint_config import CodecConfig, DualARConfig
from .checkpoint_files import (
    CODEC_FILE,
    CONFIG_FILE,
    DOWNLOAD_FIX,
    MODEL_FILE,
    check_folder,
    check_state,
    read_config,
    read_weights,
)
from .errors import CheckpointError

if TYPE_CHECKING:
    from .model.dual_ar import DualAR
    from .model.firefly import Firefly
    from .text.tokenizer import Tokenizer

__all__ = ["CODEC_FILE", "FRAME_SAMPLES", "SAMPLE_RATE", "Checkpoint", "CodecConfig", "DualARConfig", "find_checkpoint"]

SAMPLE_RATE = 44_100
FRAME_SAMPLES = 2048
FULL_RANDOM = "full-random"
_ROOT = Path(__file__).resolve().parent.parent
_LICENCES = {
    "tiny": "free to use, also commercially; sources and notices stand beside the weights in data/tiny",
    "fish-speech-1.5": "CC BY-NC-SA 4.0, by Fish Audio: name the source, no commercial use, share alike",
    FULL_RANDOM: "random weights: nothing to license and nothing to hear, for speed and memory only",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that was found complete.

    Attributes:
        name: ``tiny``, ``fish-speech-1.5``, ``full-random`` or the folder's name.
        folder: Where the files lie.
        config: Shape of the transformers.
        licence: One line that says under which licence the weights may be used.
        random_seed: Seed of the weights if they are random (``full-random``), else None.
    """

    name: str
    folder: Path
    config: DualARConfig
    licence: str
    random_seed: int | None = None

    @property
    def label(self) -> str:
        """The name as tables and plots show it; random weights are always called so."""
        return self.name if self.random_seed is None else f"{self.name} (random weights)"

    @functools.cached_property
    def codec_config(self) -> CodecConfig:
        """Shape of the codec, read off its weights."""
        from .model.firefly import fold_weight_norm

        if self.random_seed is not None:
            return CodecConfig()
        path = self.folder / CODEC_FILE
        return CodecConfig.from_state_dict(fold_weight_norm(read_weights(path)), path)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over configuration and weights: equal for equal models, whatever the folder is called."""
        digest = hashlib.sha256((self.folder / CONFIG_FILE).read_bytes())
        if self.random_seed is not None:
            digest.update(f"seed {self.random_seed}".encode())
            return digest.hexdigest()
        for name in (MODEL_FILE, CODEC_FILE):
            with (self.folder / name).open("rb") as handle:
                digest.update(hashlib.file_digest(handle, "sha256").digest())
        return digest.hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer.

        Raises:
            CheckpointError: Its files are damaged, or it does not fit the configuration.
        """
        from .text.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder(self.folder)
        codes = tokenizer.semantic_end_id - tokenizer.semantic_begin_id + 1
        problems = []
        if tokenizer.vocab_size > self.config.vocab_size:
            problems.append(f"it needs {tokenizer.vocab_size} ids, the configuration has {self.config.vocab_size}")
        if codes != self.config.codebook_size:
            problems.append(f"it has {codes} semantic tokens for a codebook of {self.config.codebook_size}")
        if problems:
            raise CheckpointError(
                f"the tokenizer does not fit {CONFIG_FILE}: {'; '.join(problems)}", where=self.folder, fix=DOWNLOAD_FIX
            )
        return tokenizer

    def load_dual_ar(self) -> DualAR:
        """Loads the two transformers in float32 on the CPU, in eval mode, without gradients.

        Raises:
            CheckpointError: The weights are damaged or do not fit the configuration.
        """
        from .model.dual_ar import DualAR, rope_table

        tokenizer, c = self.tokenizer(), self.config
        with torch.device("meta"):  # no memory and no initialisation before the weights are known to fit
            model = DualAR(c, tokenizer.semantic_begin_id, tokenizer.semantic_end_id)
        expected = model.state_dict()
        if self.random_seed is not None:
            from .full_random import random_state

            state = random_state(expected, self.random_seed)
        else:
            path = self.folder / MODEL_FILE
            state = check_state(read_weights(path), expected, path)
        # Copies, so that the model outlives its file and half-precision weights become float32.
        state = {name: tensor.to(torch.float32, copy=self.random_seed is None) for name, tensor in state.items()}
        model.load_state_dict(state, assign=True)
        model.rope = rope_table(c.max_seq_len, c.head_dim, c.rope_base)
        model.fast_rope = rope_table(c.num_codebooks, c.fast_head_dim, c.rope_base)
        return model.eval().requires_grad_(False)

    def load_codec(self) -> Firefly:
        """Loads the codec in float32 on the CPU, weight norm folded, in eval mode, without gradients.

        Raises:
            CheckpointError: The weights are damaged or are no Firefly-GAN codec.
        """
        from .model.firefly import Firefly, fold_weight_norm

        if self.random_seed is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.random_seed)
                return Firefly(CodecConfig()).eval().requires_grad_(False)
        path = self.folder / CODEC_FILE
        try:
            state = fold_weight_norm(read_weights(path))
        except KeyError as error:
            what = f"half of a weight-norm pair is missing: {error}"
            raise CheckpointError(what, where=path, fix=DOWNLOAD_FIX) from error
        model = Firefly(CodecConfig.from_state_dict(state, path))
        model.load_state_dict(check_state(state, model.state_dict(), path))
        return model.float().eval().requires_grad_(False)


def find_checkpoint(name_or_path: str | Path = "tiny") -> Checkpoint:
    """Finds a checkpoint by name or by folder and checks that it is complete.

    ``fish-speech-1.5`` is looked for in ``outputs/checkpoints`` of the repository, in ``checkpoints`` of the working
    directory (where upstream's own instructions put it), and in the Hugging Face cache. The weights of ``full-random``
    are made when they are loaded; only its configuration and tokenizer are written.

    Args:
        name_or_path: ``tiny``, ``fish-speech-1.5``, ``full-random``, or a folder.

    Returns:
        The checkpoint. Nothing large has been read yet.

    Raises:
        CheckpointError: Nothing lies there, files are missing, or the folder belongs to another model.
    """
    name = str(name_or_path)
    if name == FULL_RANDOM:
        from .full_random import write_full_random

        folder = write_full_random(_ROOT / "outputs" / "checkpoints" / FULL_RANDOM)
        config = DualARConfig.from_dict(read_config(folder / CONFIG_FILE), folder / CONFIG_FILE)
        return Checkpoint(name, folder, config, _LICENCES[name], random_seed=0)
    if name == "tiny":
        folder = _ROOT / "data" / "tiny"
    elif name == "fish-speech-1.5":
        folder = _find_official()
    else:
        folder = Path(name_or_path).expanduser()
        name = folder.resolve().name
    check_folder(folder, "git checkout -- data/tiny" if name == "tiny" else DOWNLOAD_FIX)
    config = DualARConfig.from_dict(read_config(folder / CONFIG_FILE), folder / CONFIG_FILE)
    if config.num_codebooks != CodecConfig().groups:
        raise CheckpointError(
            f"the codec has {CodecConfig().groups} codebooks, {CONFIG_FILE} says {config.num_codebooks}",
            where=folder / CONFIG_FILE,
            fix=DOWNLOAD_FIX,
        )
    return Checkpoint(name, folder, config, _LICENCES.get(name, "not known: see the folder"))


def _find_official() -> Path:
    """Return the first place that has a folder, or raise with all the places."""
    from .download import DEFAULT_FOLDER, cached_folder

    places = [DEFAULT_FOLDER, Path("checkpoints") / "fish-speech-1.5"]
    cached = cached_folder()
    for place in [*places, *([cached] if cached else [])]:
        if (place / CONFIG_FILE).is_file():
            return place
    looked = ", ".join(map(str, [*places, "the Hugging Face cache"]))
    raise CheckpointError("Fish Speech 1.5 is not on this machine", where=looked, fix=DOWNLOAD_FIX)
