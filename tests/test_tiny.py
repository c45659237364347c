"""The embedded checkpoint: its size and papers, upstream can load it, and it is understood."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fstrt_helpers.audio import resample
from fstrt_helpers.checkpoint import CODEC_FILE, find_checkpoint
from fstrt_helpers.measure.recogniser import Recogniser, recall
from fstrt_helpers.measure.voice import VoiceJudge
from fstrt_helpers.model.dual_ar import GrowingCache
from fstrt_helpers.speech import FishSpeech
from fstrt_helpers.text import build_prompt

from .upstream import import_upstream_lib

DATA = Path(__file__).resolve().parent.parent / "data"
TINY = DATA / "tiny"


@pytest.fixture(scope="module")
def tiny() -> FishSpeech:
    return FishSpeech.from_checkpoint("tiny", backend="torch")


def recordings(by: str) -> list[dict[str, str]]:
    rows = json.loads((DATA / "samples" / "samples.json").read_text(encoding="utf-8"))
    return [row for row in rows if row["by"] == by]


def read(name: str) -> np.ndarray:
    wave, rate = soundfile.read(DATA / "samples" / name, dtype="float32")
    assert rate in (16_000, 44_100)
    return wave if rate == 44_100 else resample(wave, rate)


def test_size_and_papers():
    assert sum(f.stat().st_size for f in TINY.iterdir() if f.is_file()) < 32e6
    readme = (TINY / "README.md").read_text(encoding="utf-8")
    for paper in ("LICENSE-WORDNET.txt", "LICENSE-FLITE.txt"):
        assert (TINY / paper).stat().st_size > 500 and paper in readme


def test_no_held_out_sentence_shares_five_words_with_a_reference_voice():
    def runs(text: str) -> set[tuple[str, ...]]:
        words = "".join(c if c.isalpha() or c == " " else " " for c in text.lower()).split()
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    held_out = (TINY / "heldout.txt").read_text(encoding="utf-8").splitlines()
    assert len(held_out) == 50
    voices = json.loads((DATA / "voices" / "voices.json").read_text(encoding="utf-8"))
    for sentence in held_out:
        for voice in voices.values():
            assert not runs(sentence) & runs(voice["text"])


@torch.inference_mode()
def test_upstreams_transformer_loads_it_and_agrees(tiny):
    lib = import_upstream_lib()
    args = lib.llama.BaseModelArgs.from_pretrained(str(TINY / "config.json"))
    theirs = lib.llama.DualARTransformer(args, lib.tokenizer.FishTokenizer(str(TINY / "tokenizer.tiktoken"))).eval()
    weights = {k: v.float() for k, v in torch.load(TINY / "model.pth", weights_only=True).items()}
    assert not theirs.load_state_dict(weights, strict=True).missing_keys
    prompt = torch.from_numpy(build_prompt(tiny.tokenizer, "The soup needs a bit more salt."))[None]
    logits = theirs.forward(prompt).token_logits
    ours = tiny.checkpoint.load_dual_ar()
    caches = [GrowingCache() for _ in ours.layers]
    hidden = ours.slow(prompt, torch.zeros(1, dtype=torch.int64), None, caches)
    assert (ours.norm(hidden) @ ours.output_weight.mT - logits).abs().max() <= 1e-4


@torch.inference_mode()
def test_upstreams_codec_loads_it_and_agrees(tiny):
    lib = import_upstream_lib()
    c = tiny.checkpoint.codec_config
    theirs = lib.firefly.FireflyArchitecture(
        backbone=lib.firefly.ConvNeXtEncoder(160, list(c.encoder_depths), list(c.encoder_dims), kernel_size=7),
        head=lib.firefly.HiFiGANGenerator(
            hop_length=512,
            upsample_rates=list(c.upsample_rates),
            upsample_kernel_sizes=list(c.upsample_kernels),
            num_mels=c.latent_dim,
            upsample_initial_channel=c.head_channels,
            pre_conv_kernel_size=c.pre_kernel,
            post_conv_kernel_size=c.post_kernel,
        ),
        quantizer=lib.fsq.DownsampleFiniteScalarQuantize(
            c.latent_dim, n_codebooks=1, n_groups=8, levels=[8, 5, 5, 5], downsample_factor=[2, 2]
        ),
        spec_transform=torch.nn.Identity(),
    ).eval()
    theirs.remove_parametrizations()  # the file holds folded weights
    weights = {k: v.float() for k, v in torch.load(TINY / CODEC_FILE, weights_only=True).items()}
    theirs.load_state_dict(weights, strict=True)
    ours = tiny.runtimes["codec_decode"].module
    codes = torch.randint(0, 1000, (1, 8, 20), generator=torch.Generator().manual_seed(0))
    expected = theirs.head(theirs.quantizer.decode(codes))
    assert expected.std() > 1e-3
    assert (ours.decode(codes) - expected).abs().max() <= 1e-4
    mel = torch.randn(1, 160, 80, generator=torch.Generator().manual_seed(1)) * 2 - 6
    assert torch.equal(ours.encode(mel), theirs.quantizer.encode(theirs.backbone(mel)).long())


@pytest.mark.slow
@pytest.mark.parametrize("voice", ["slt", "rms"])
def test_it_is_understood_and_has_the_right_voice(tiny, voice):
    if importlib.util.find_spec("faster_whisper") is None:
        pytest.skip("faster-whisper is not installed: run `make setup`")
    originals = recordings("flite")
    judge = VoiceJudge({v: [read(r["file"]) for r in originals if r["voice"] == v] for v in ("slt", "rms")}, 44_100)
    recogniser, recalls = Recogniser(), []
    for seed, row in enumerate(r for r in originals if r["voice"] == voice):
        speech = tiny.synthesize(row["text"], voice=voice, seed=seed)
        assert speech.stop_reasons == ("eos",)
        assert 0.8 <= speech.duration * 44_100 / len(read(row["file"])) <= 1.25
        assert judge.judge(speech.audio, speech.sample_rate).name == voice
        recalls.append(recall(row["text"], recogniser.hear(speech.audio, speech.sample_rate)))
    # Another processor draws other tokens, so single words may differ; the mean of many sentences is 0.92.
    assert len(recalls) == 5 and np.mean(recalls) >= 0.75


def test_it_is_the_default():
    assert find_checkpoint().folder == TINY
    assert find_checkpoint("tiny").licence
