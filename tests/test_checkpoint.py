"""Finding, checking and loading checkpoint folders, sound and damaged."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fstrt_helpers import checkpoint as checkpoint_module
from fstrt_helpers.checkpoint import CODEC_FILE, Checkpoint, CodecConfig, DualARConfig, find_checkpoint
from fstrt_helpers.checkpoint_files import read_weights
from fstrt_helpers.errors import CheckpointError
from fstrt_helpers.full_random import OFFICIAL_CONFIG, random_tensor, write_full_random
from fstrt_helpers.model.dual_ar import DualAR, rope_table

from .checkpoints import RANDOM_CONFIG, write_random_checkpoint
from .upstream import import_upstream_lib


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint") / "random")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "random"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], name: str = "model.pth") -> None:
    state = torch.load(folder / name, weights_only=True)
    state = change(state) or state
    torch.save(state, folder / name)


def same_weights(model: torch.nn.Module, folder: Path, name: str = "model.pth") -> bool:
    state = torch.load(folder / name, weights_only=True)
    return all(torch.equal(tensor.float(), state[key].float()) for key, tensor in model.state_dict().items())


# --- sound folders ---------------------------------------------------------------------------------------------------


def test_loads(pristine: Path) -> None:
    found = find_checkpoint(pristine)
    assert (found.name, found.label, found.folder) == ("random", "random", pristine)
    model, codec = found.load_dual_ar(), found.load_codec()
    assert same_weights(model, pristine) and same_weights(codec, pristine, CODEC_FILE)
    assert not model.training and not codec.training
    assert all(parameter.dtype == torch.float32 for parameter in [*model.parameters(), *codec.parameters()])
    assert found.tokenizer().semantic_begin_id == model.semantic_begin_id == 268


def test_rotary_tables_are_those_of_a_model_built_in_memory(pristine: Path) -> None:
    model = find_checkpoint(pristine).load_dual_ar()
    config = model.config
    for table, expected in zip(
        model.rope, rope_table(config.max_seq_len, config.head_dim, config.rope_base), strict=True
    ):
        assert torch.equal(table, expected)
    built = DualAR(config, 268, 1291)
    for table, expected in zip(model.fast_rope, built.fast_rope, strict=True):
        assert torch.equal(table, expected)


def test_the_model_outlives_its_file(folder: Path) -> None:
    model = find_checkpoint(folder).load_dual_ar()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    os.truncate(folder / "model.pth", 100)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_data_types_become_float32(folder: Path, dtype: torch.dtype) -> None:
    edit_weights(folder, lambda state: {name: tensor.to(dtype) for name, tensor in state.items()})
    model = find_checkpoint(folder).load_dual_ar()
    assert model.norm.weight.dtype == torch.float32
    assert same_weights(model, folder)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}},
        lambda state: {f"model.{name}": tensor for name, tensor in state.items()},
        lambda state: state | {"freqs_cis": torch.zeros(4, 2, 2), "causal_mask": torch.ones(4, 4, dtype=torch.bool)},
    ],
    ids=["lightning", "lightning with prefix", "prefix", "recomputed buffers"],
)
def test_accepted_wrappings(folder: Path, pristine: Path, wrap: Callable[[dict], dict]) -> None:
    edit_weights(folder, wrap)
    assert same_weights(find_checkpoint(folder).load_dual_ar(), pristine)


def test_old_pickle_format(folder: Path) -> None:
    state = torch.load(folder / "model.pth", weights_only=True)
    torch.save(state, folder / "model.pth", _use_new_zipfile_serialization=False)
    assert same_weights(find_checkpoint(folder).load_dual_ar(), folder)


def test_codec_with_weight_norm_and_generator_prefix(folder: Path) -> None:
    def split(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = {}
        for name, tensor in state.items():
            if name.startswith("head.") and name.endswith("conv.weight"):
                out[f"generator.{name.removesuffix('weight')}weight_g"] = tensor.norm(dim=(1, 2), keepdim=True)
                out[f"generator.{name.removesuffix('weight')}weight_v"] = tensor * 3
            else:
                out[f"generator.{name}"] = tensor
        return out

    plain = find_checkpoint(folder).load_codec().state_dict()
    edit_weights(folder, split, CODEC_FILE)
    folded = find_checkpoint(folder).load_codec().state_dict()
    assert all(torch.allclose(folded[name], plain[name], atol=1e-6) for name in plain)
    edit_weights(folder, lambda s: {k: v for k, v in s.items() if not k.endswith("conv_pre.conv.weight_g")}, CODEC_FILE)
    with pytest.raises(CheckpointError, match=r"half of a weight-norm pair.*conv_pre"):
        find_checkpoint(folder).load_codec()


def test_loads_the_codec_file_upstream_writes(folder: Path) -> None:
    """Every name in upstream's own state dict is known, weight norm included."""
    lib = import_upstream_lib()
    theirs = lib.firefly.FireflyArchitecture(
        backbone=lib.firefly.ConvNeXtEncoder(
            input_channels=160, depths=[1, 1, 2, 1], dims=[8, 8, 16, 64], kernel_size=7
        ),
        head=lib.firefly.HiFiGANGenerator(
            hop_length=512,
            upsample_rates=[8, 8, 2, 2, 2],
            upsample_kernel_sizes=[16, 16, 4, 4, 4],
            num_mels=64,
            upsample_initial_channel=32,
            pre_conv_kernel_size=13,
            post_conv_kernel_size=13,
        ),
        quantizer=lib.fsq.DownsampleFiniteScalarQuantize(
            input_dim=64, n_groups=8, n_codebooks=1, levels=[8, 5, 5, 5], downsample_factor=[2, 2]
        ),
        spec_transform=torch.nn.Identity(),
    ).eval()
    torch.save(theirs.state_dict(), folder / CODEC_FILE)
    codec = find_checkpoint(folder).load_codec()
    assert codec.config.encoder_depths == (1, 1, 2, 1)
    codes = torch.randint(0, 1000, (1, 8, 4), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        samples = codec.decode(codes)
        expected = theirs.head(theirs.quantizer.decode(codes))
    assert samples.shape == (1, 1, 4 * 2048)
    assert torch.allclose(samples, expected, atol=1e-5)


def test_upstream_loads_the_same_folder(pristine: Path) -> None:
    """The layout is the official one: upstream's own loader takes the folder as it is."""
    model = import_upstream_lib().llama.BaseTransformer.from_pretrained(str(pristine), load_weights=True)
    assert same_weights(model, pristine)


# --- the configuration -----------------------------------------------------------------------------------------------


def test_unknown_keys_are_kept(folder: Path) -> None:
    edit_config(folder, dropout=0.1, note={"by": "test"})
    assert find_checkpoint(folder).config.extra == {"model_type": "dual_ar", "dropout": 0.1, "note": {"by": "test"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": "1024"}, r"dim: wanted int, got str \('1024'\)"),
        ({"dim": 32.5}, r"dim: wanted int, got float \(32.5\)"),
        ({"n_layer": True}, r"n_layer: wanted int, got bool"),
        ({"tie_word_embeddings": 0}, r"tie_word_embeddings: wanted bool, got int"),
        ({"rope_base": [1]}, r"rope_base: wanted float, got list"),
        ({"norm_eps": -1e-6}, r"norm_eps: must be above zero"),
        ({"n_head": 0}, r"n_head: must be above zero"),
        ({"vocab_size": "absent"}, r"vocab_size: missing"),
        ({"vocab_size": None}, r"vocab_size: missing"),
        ({"n_head": 5}, r"dim 32 is no multiple of n_head 5"),
        ({"n_local_heads": 3}, r"n_head 4 is no multiple of n_local_heads 3"),
        ({"n_head": 32, "n_local_heads": 2}, r"must be even, got 1"),
        ({"fast_n_head": 3}, r"fast_dim 32 is no multiple of fast_n_head 3"),
        ({"model_type": "naive"}, r"model_type: wanted 'dual_ar', got 'naive'"),
        ({"scale_codebook_embeddings": True}, r"scale_codebook_embeddings: 1.5 knows only False, not True"),
        ({"share_codebook_embeddings": False}, r"share_codebook_embeddings: 1.5 knows only True"),
        ({"num_codebooks": 9}, r"the codec has 8 codebooks"),
    ],
)
def test_wrong_configuration(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        find_checkpoint(folder)
    assert "config.json" in str(caught.value)


def test_every_problem_is_listed_at_once(folder: Path) -> None:
    edit_config(folder, dim="x", n_layer=None, norm_eps=0, is_reward_model=True)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(folder)
    for name in ("dim", "n_layer", "norm_eps", "is_reward_model"):
        assert f"\n    {name}: " in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "\xff\xfe", ""])
def test_configuration_that_is_no_json_object(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match="configuration"):
        find_checkpoint(folder)


def test_silent_keys_mean_what_upstream_assumes() -> None:
    data = {key: value for key, value in RANDOM_CONFIG.items() if key not in ("rope_base", "norm_eps", "n_fast_layer")}
    data |= {"n_local_heads": -1, "intermediate_size": None, "head_dim": 999}
    del data["tie_word_embeddings"]
    ours = DualARConfig.from_dict(data)
    theirs = import_upstream_lib().llama.DualARModelArgs(**data)
    for name in vars(ours):
        if name != "extra":
            assert getattr(ours, name) == getattr(theirs, name), name


# --- missing files and other models ----------------------------------------------------------------------------------


def test_all_missing_files_are_named(folder: Path) -> None:
    for name in ("model.pth", CODEC_FILE):
        (folder / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(folder)
    message = str(caught.value)
    assert "model.pth" in message and CODEC_FILE in message and "tokenizer.tiktoken" not in message
    assert "python -m fstrt_helpers.download" in message and "hf download fishaudio/fish-speech-1.5" in message
    assert str(folder) in message


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        find_checkpoint(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(CheckpointError, match="is a file"):
        find_checkpoint(file)


def make_1_4(folder: Path) -> None:
    (folder / "tokenizer.tiktoken").unlink()
    (folder / "special_tokens.json").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_text("{}")


def make_1_2(folder: Path) -> None:
    make_1_4(folder)
    edit_config(folder, num_codebooks=4)
    (folder / CODEC_FILE).rename(folder / "firefly-gan-vq-fsq-4x1024-42hz-generator.pth")


def make_s1_mini(folder: Path) -> None:
    edit_config(folder, num_codebooks=10, codebook_size=4096, attention_qk_norm=True, scale_codebook_embeddings=True)
    (folder / CODEC_FILE).rename(folder / "codec.pth")


@pytest.mark.parametrize(
    ("make", "name"),
    [(make_1_4, "Fish Speech 1.4"), (make_1_2, "Fish Speech 1.2 or older"), (make_s1_mini, "OpenAudio S1")],
)
def test_relatives_are_named(folder: Path, make: Callable[[Path], None], name: str) -> None:
    make(folder)
    with pytest.raises(CheckpointError, match=f"not Fish Speech 1.5 but {name}") as caught:
        find_checkpoint(folder)
    assert "download" in str(caught.value)


def test_codec_of_another_network(folder: Path) -> None:
    torch.save({"quantizer.semantic_quantizer.weight": torch.zeros(2)}, folder / CODEC_FILE)
    with pytest.raises(CheckpointError, match="DAC codec"):
        find_checkpoint(folder).load_codec()
    torch.save({"weight": torch.zeros(2)}, folder / CODEC_FILE)
    with pytest.raises(CheckpointError, match="another network"):
        find_checkpoint(folder).load_codec()


# --- damaged weights -------------------------------------------------------------------------------------------------


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": os.getcwd}, protocol=2))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "truncated"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated"),
        (lambda path: os.truncate(path, 0), "empty"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00"), "Git LFS pointer"),
        (lambda path: path.write_text("<!DOCTYPE html><p>not found"), "no PyTorch checkpoint"),
        (write_pickle, "objects beyond tensors"),
        (lambda path: path.write_bytes(b"\x80\x02garbage"), "cannot be read|beyond tensors"),
        (
            lambda path: (
                shutil.make_archive(str(path)[:-4], "zip", path.parent) and os.replace(f"{str(path)[:-4]}.zip", path)
            ),
            "cannot be read",
        ),
        (lambda path: torch.save([torch.zeros(2)], path), "no state dict"),
        (lambda path: torch.save({}, path), "no state dict"),
        (lambda path: torch.save({"a": 1}, path), "no state dict"),
    ],
)
@pytest.mark.parametrize("name", ["model.pth", CODEC_FILE])
def test_damaged_file(folder: Path, name: str, damage: Callable[[Path], Any], message: str) -> None:
    damage(folder / name)
    found = find_checkpoint(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        found.load_dual_ar() if name == "model.pth" else found.load_codec()
    assert str(folder / name) in str(caught.value) and "fix:" in str(caught.value)


def test_names_and_shapes_are_compared_with_the_configuration(folder: Path) -> None:
    def change(state: dict[str, torch.Tensor]) -> None:
        del state["norm.weight"]
        state["output.weight"] = torch.zeros(7, 32)
        state["layers.9.attention.wo.weight"] = torch.zeros(32, 32)
        state["fast_norm.weight"] = torch.ones(32, dtype=torch.int64)

    edit_weights(folder, change)
    with pytest.raises(CheckpointError, match="4 of the weights do not fit") as caught:
        find_checkpoint(folder).load_dual_ar()
    message = str(caught.value)
    assert "missing: norm.weight [32]" in message
    assert "shape: output.weight is [7, 32], wanted [1292, 32]" in message
    assert "unknown: layers.9.attention.wo.weight [32, 32]" in message
    assert "type: fast_norm.weight holds torch.int64" in message


def test_a_configuration_of_another_size(folder: Path) -> None:
    edit_config(folder, n_layer=3)
    with pytest.raises(CheckpointError, match=r"missing: layers\.2\.attention\.wqkv\.weight"):
        find_checkpoint(folder).load_dual_ar()
    edit_config(folder, n_layer=40)
    with pytest.raises(CheckpointError, match=r"and \d+ more"):
        find_checkpoint(folder).load_dual_ar()


def test_lora_is_refused(folder: Path) -> None:
    edit_weights(folder, lambda state: state | {"output.lora_A": torch.zeros(2, 32)})
    with pytest.raises(CheckpointError, match="LoRA"):
        find_checkpoint(folder).load_dual_ar()


def test_tokenizer_must_fit_the_configuration(folder: Path) -> None:
    edit_config(folder, vocab_size=1000)
    with pytest.raises(CheckpointError, match="needs 1292 ids, the configuration has 1000"):
        find_checkpoint(folder).tokenizer()
    edit_config(folder, vocab_size=1292, codebook_size=512)
    with pytest.raises(CheckpointError, match="1024 semantic tokens for a codebook of 512"):
        find_checkpoint(folder).load_dual_ar()


def test_reading_weights_runs_no_code(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (trap,))

    torch.save({"weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(CheckpointError, match="beyond tensors"):
        read_weights(tmp_path / "trap.pth")
    assert not trap.exists()


# --- names -----------------------------------------------------------------------------------------------------------


def test_official_is_found_in_the_working_directory(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fstrt_helpers.download.DEFAULT_FOLDER", tmp_path / "default")
    monkeypatch.setattr("fstrt_helpers.download.cached_folder", lambda: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="not on this machine") as caught:
        find_checkpoint("fish-speech-1.5")
    assert str(tmp_path / "default") in str(caught.value) and "--accept-license" in str(caught.value)
    shutil.copytree(pristine, tmp_path / "checkpoints" / "fish-speech-1.5")
    found = find_checkpoint("fish-speech-1.5")
    assert found.name == "fish-speech-1.5" and "CC BY-NC-SA 4.0" in found.licence
    shutil.copytree(pristine, tmp_path / "default")
    assert find_checkpoint("fish-speech-1.5").folder == tmp_path / "default"


def test_full_random_is_official_in_shape_and_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "_ROOT", tmp_path)
    found = find_checkpoint("full-random")
    assert found.label == "full-random (random weights)" and "random" in found.licence
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "README.txt",
        "config.json",
        "special_tokens.json",
        "tokenizer.tiktoken",
    ]
    assert [path.name for path in found.folder.parent.iterdir()] == ["full-random"]
    tokenizer = found.tokenizer()
    assert tokenizer.vocab_size == found.config.vocab_size == 102_048
    assert tokenizer.decode(tokenizer.encode("naïve 中文")) == "naïve 中文"
    with torch.device("meta"):
        model = DualAR(found.config, tokenizer.semantic_begin_id, tokenizer.semantic_end_id)
    assert sum(parameter.numel() for parameter in model.parameters()) == 637_921_280
    stamp = (found.folder / "config.json").stat().st_mtime_ns
    assert write_full_random(found.folder) == found.folder
    assert (found.folder / "config.json").stat().st_mtime_ns == stamp


def test_random_weights_are_seeded_per_name() -> None:
    first = random_tensor("layers.0.attention.wo.weight", (64, 32), 0)
    assert torch.equal(first, random_tensor("layers.0.attention.wo.weight", (64, 32), 0))
    assert not torch.equal(first, random_tensor("layers.1.attention.wo.weight", (64, 32), 0))
    assert not torch.equal(first, random_tensor("layers.0.attention.wo.weight", (64, 32), 1))
    assert torch.equal(first, first.bfloat16().float())
    assert 0.018 < float(first.std()) < 0.022
    assert torch.equal(random_tensor("norm.weight", (8,), 0), torch.ones(8))


def test_random_checkpoint_loads(tmp_path: Path, pristine: Path) -> None:
    """The code path of `full-random` at the size of a test."""
    config = DualARConfig.from_dict(RANDOM_CONFIG)
    seeded = [Checkpoint("small-random", pristine, config, "", random_seed=7).load_dual_ar() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(seeded[0].parameters(), seeded[1].parameters(), strict=True))
    assert not same_weights(seeded[0], pristine)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    codec = Checkpoint("small-random", pristine, config, "", random_seed=7).load_codec()
    assert codec.config == CodecConfig()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_official_configuration_is_what_upstream_takes() -> None:
    theirs = import_upstream_lib().llama.DualARModelArgs(**OFFICIAL_CONFIG)
    ours = DualARConfig.from_dict(dict(OFFICIAL_CONFIG))
    for name in vars(ours):
        if name != "extra":
            assert getattr(ours, name) == getattr(theirs, name), name
