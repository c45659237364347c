"""The shapes of a checkpoint's networks: what ``config.json`` says, and what the codec's tensors say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from .checkpoint_files import CODEC_FILE, CONFIG_FILE, DOWNLOAD_FIX
from .errors import CheckpointError

__all__ = ["CodecConfig", "DualARConfig"]

_REQUIRED = (
    "dim",
    "n_layer",
    "n_head",
    "n_local_heads",
    "vocab_size",
    "max_seq_len",
    "codebook_size",
    "num_codebooks",
)
# What v1.5.1 assumes where config.json is silent.
_UPSTREAM_DEFAULTS = {"n_fast_layer": 4, "rope_base": 10_000.0, "norm_eps": 1e-5, "tie_word_embeddings": True}
# Switches of later models that change the arithmetic, with the only value that 1.5 knows.
_FIXED = {
    "is_reward_model": False,
    "scale_codebook_embeddings": False,
    "share_codebook_embeddings": True,
    "attention_qk_norm": False,
    "attention_o_bias": False,
    "fast_attention_qk_norm": False,
    "fast_attention_o_bias": False,
}


@dataclass(frozen=True)
class DualARConfig:
    """Shape of the slow and the fast transformer, as ``config.json`` names it.

    Widths that ``config.json`` leaves out or sets to null follow from the slow transformer's.
    Keys this class does not know are kept in ``extra``.
    """

    dim: int
    n_layer: int
    n_head: int
    n_local_heads: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int
    codebook_size: int = 1024
    num_codebooks: int = 8
    n_fast_layer: int = 4
    rope_base: float = 1e6
    norm_eps: float = 1e-6
    head_dim: int = 0
    fast_dim: int = 0
    fast_n_head: int = 0
    fast_n_local_heads: int = 0
    fast_head_dim: int = 0
    fast_intermediate_size: int = 0
    tie_word_embeddings: bool = False
    attention_qkv_bias: bool = False
    fast_attention_qkv_bias: bool = False
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        derived = {
            "head_dim": self.dim // self.n_head,
            "fast_dim": self.dim,
            "fast_n_head": self.n_head,
            "fast_n_local_heads": self.n_local_heads,
            "fast_intermediate_size": self.intermediate_size,
        }
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if not self.fast_head_dim:
            object.__setattr__(self, "fast_head_dim", self.fast_dim // self.fast_n_head)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: object = CONFIG_FILE) -> DualARConfig:
        """Builds a configuration from the parsed ``config.json``.

        Args:
            data: Its keys and values. Unknown keys are kept in ``extra``.
            where: The file, for error messages.

        Raises:
            CheckpointError: Keys are missing, have the wrong type, contradict each other, or ask for what 1.5 has not;
                all of them are named.
        """
        types = {f.name: {"int": int, "float": float, "bool": bool}.get(str(f.type)) for f in fields(cls)}
        problems = [f"{key}: missing" for key in _REQUIRED if data.get(key) is None]
        given: dict[str, Any] = {}
        for key, value in {**_UPSTREAM_DEFAULTS, **data}.items():
            wanted = types.get(key)
            if wanted is None or value is None:
                continue
            accepted = (int, float) if wanted is float else (wanted,)
            if not isinstance(value, accepted) or isinstance(value, bool) is not (wanted is bool):
                problems.append(f"{key}: wanted {wanted.__name__}, got {type(value).__name__} ({value!r})")
            elif wanted is not bool and value <= 0 and not (key == "n_local_heads" and value == -1):
                problems.append(f"{key}: must be above zero, got {value!r}")
            else:
                given[key] = wanted(value)
        problems += [
            f"{key}: 1.5 knows only {v}, not {data[key]!r}" for key, v in _FIXED.items() if data.get(key, v) is not v
        ]
        if data.get("model_type", "dual_ar") != "dual_ar":
            problems.append(f"model_type: wanted 'dual_ar', got {data['model_type']!r}")
        if problems:
            raise _config_error(problems, where)
        if given["n_local_heads"] == -1:
            given["n_local_heads"] = given["n_head"]
        if "intermediate_size" not in given:  # two thirds of four times the width, rounded up to 256
            given["intermediate_size"] = -(-int(8 * given["dim"] / 3) // 256) * 256
        given.setdefault("fast_attention_qkv_bias", given.get("attention_qkv_bias", False))
        given.pop("head_dim", None)  # always dim / n_head in 1.5, whatever the file says
        config = cls(**given, extra={k: v for k, v in data.items() if k not in types})
        problems = list(config._contradictions())
        if problems:
            raise _config_error(problems, where)
        return config

    def _contradictions(self) -> list[str]:
        found = []
        for prefix, dim in (("", self.dim), ("fast_", self.fast_dim)):
            heads, kv_heads = getattr(self, f"{prefix}n_head"), getattr(self, f"{prefix}n_local_heads")
            if dim % heads:
                found.append(f"{prefix}dim {dim} is no multiple of {prefix}n_head {heads}")
            elif (dim // heads) % 2:
                found.append(f"{prefix}dim / {prefix}n_head must be even, got {dim // heads}")
            if heads % kv_heads:
                found.append(f"{prefix}n_head {heads} is no multiple of {prefix}n_local_heads {kv_heads}")
        return found


def _config_error(problems: list[str], where: object) -> CheckpointError:
    listed = "\n    ".join(problems)
    return CheckpointError(
        f"the configuration is not one of Fish Speech 1.5:\n    {listed}", where=where, fix=DOWNLOAD_FIX
    )


@dataclass(frozen=True)
class CodecConfig:
    """Shape of the Firefly-GAN codec. The defaults are Fish Speech 1.5's.

    The codec has no configuration file: :meth:`from_state_dict` reads the widths off the tensors.
    """

    mel_bins: int = 160
    encoder_dims: tuple[int, ...] = (128, 256, 384, 512)
    encoder_depths: tuple[int, ...] = (3, 3, 9, 3)
    head_channels: int = 512
    pre_kernel: int = 13
    post_kernel: int = 13
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2, 2)
    upsample_kernels: tuple[int, ...] = (16, 16, 4, 4, 4)
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[int, ...] = (1, 3, 5)
    groups: int = 8
    levels: tuple[int, ...] = (8, 5, 5, 5)
    downsample: tuple[int, ...] = (2, 2)

    @property
    def latent_dim(self) -> int:
        """Width of the features that are quantised."""
        return self.encoder_dims[-1]

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor], where: object = CODEC_FILE) -> CodecConfig:
        """Reads the widths off the shapes of a codec state dict with weight norm folded.

        Raises:
            CheckpointError: The tensors are not those of a Firefly-GAN codec.
        """
        dims, depths = [], []
        while (stem := f"backbone.stages.{len(dims)}.0.norm.weight") in state:
            depth = 0
            while f"backbone.stages.{len(dims)}.{depth}.norm.weight" in state:
                depth += 1
            dims.append(state[stem].shape[0])
            depths.append(depth)
        names = (
            "backbone.downsample_layers.0.0.conv.weight",
            "head.conv_pre.conv.weight",
            "head.conv_post.conv.weight",
        )
        absent = [name for name in names if name not in state or state[name].ndim != 3]
        if absent or not dims:
            dac = any("semantic_quantizer" in name for name in state)
            kind = "a DAC codec (OpenAudio S1 or later)" if dac else "another network"
            listed = ", ".join(absent or ["backbone.stages.0.0.norm.weight"])
            raise CheckpointError(f"this is {kind}, no Firefly-GAN codec: no {listed}", where=where, fix=DOWNLOAD_FIX)
        mel, pre, post = (state[name] for name in names)
        return cls(
            mel_bins=mel.shape[1],
            encoder_dims=tuple(dims),
            encoder_depths=tuple(depths),
            head_channels=pre.shape[0],
            pre_kernel=pre.shape[2],
            post_kernel=post.shape[2],
        )
