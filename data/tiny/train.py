"""Trains the checkpoint ``tiny`` from nothing: text, speech, codec, transformers.

    python data/tiny/train.py --out outputs/tiny

Times are for one H200 and 16 cores. Speaking goes on all through; first the whole codec is trained, then encoder and
quantiser are frozen and the transformers are trained while the decoder goes on learning on a stream of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from conversations import Turns, batches  # noqa: E402
from export import write_config, write_tokenizer, write_weights  # noqa: E402
from fstrt_helpers.checkpoint import CODEC_FILE  # noqa: E402
from fstrt_helpers.model.dual_ar import DualAR  # noqa: E402
from fstrt_helpers.model.firefly import Firefly  # noqa: E402
from fstrt_helpers.text.tokenizer import Tokenizer  # noqa: E402
from speak import VOICES, Flite, start_speakers, voice_of  # noqa: E402
from store import ShardReader, SpeechStore  # noqa: E402
from train_codec import TINY_CODEC, CodecTrainer, DecoderTrainer  # noqa: E402
from train_dual_ar import TINY_DUAL_AR, DualARTrainer  # noqa: E402


class Log:
    """Lines on the terminal and the same as rows of ``log.json``."""

    def __init__(self, out: Path, start: float) -> None:
        self.path, self.start, self.rows = out / "log.json", start, []

    def seconds(self) -> float:
        return time.time() - self.start

    def __call__(self, phase: str, **values: float | int | str) -> None:
        row = {"t": round(self.seconds(), 1), "phase": phase}
        row |= {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        self.rows.append(row)
        print(" ".join(f"{k}={v}" for k, v in row.items()), flush=True)
        self.path.write_text(json.dumps(self.rows, indent=0), encoding="utf-8")


def new_dual_ar(tokenizer: Tokenizer, device: torch.device) -> DualAR:
    """Transformers with fresh weights."""
    torch.manual_seed(2)
    model = DualAR(TINY_DUAL_AR, tokenizer.semantic_begin_id, tokenizer.semantic_end_id)
    DualARTrainer.initialise(model)
    return model.to(device)


def warm(args: argparse.Namespace, device: torch.device) -> None:
    """Compiles the transformers' step on invented batches: finds faults early and fills the compiler's cache."""
    tokenizer = Tokenizer.from_folder(args.out / "tiny")
    trainer = DualARTrainer(new_dual_ar(tokenizer, device), compiled=args.compile)
    for rows, length in ((8, 160), (16, 96), (8, 288)):
        columns = torch.randint(0, 1000, (rows, 9, length), device=device)
        labels = torch.randint(tokenizer.semantic_begin_id, tokenizer.semantic_end_id, (rows, length), device=device)
        slow, fast = trainer.step(columns, labels, 512, 0.0)
        print(f"compiled step: slow {float(slow):.2f} fast {float(fast):.2f}", flush=True)


def train_codec(args: argparse.Namespace, store: SpeechStore, reader: ShardReader, log: Log) -> Firefly:
    """First phase; returns the codec, frozen and folded, its encoder rounded to float16."""
    while store.with_audio < 40 * args.frames:
        store.take(reader, 40)
        time.sleep(0.2)
    begin = log.seconds()
    torch.backends.cudnn.benchmark = True
    trainer = CodecTrainer(store, args.crops, args.frames)
    torch.backends.cudnn.benchmark = False
    log("codec", captured=log.seconds() - begin, parameters=sum(p.numel() for p in trainer.codec.parameters()))
    number, polled, total = 0, time.time(), torch.zeros(2, device=store.device)
    while log.seconds() < args.codec_until:
        total += trainer.step((log.seconds() - begin) / (args.codec_until - begin), number)
        number += 1
        if time.time() - polled > 4 or number == 1:
            polled = time.time()
            store.take(reader, 60)
        if number % args.every == 0:
            loss, mel = (total / args.every).tolist()
            log("codec", step=number, loss=loss, mel=mel, utterances=len(store.starts))
            total.zero_()
    codec = trainer.freeze()
    with torch.no_grad():
        for parameter in codec.parameters():
            parameter.copy_(parameter.half().float())
    write_weights(args.out / "tiny", codec=codec.state_dict())
    log("codec", step=number, utterances=len(store.starts), hours=store.used * 2048 / 44100 / 3600)
    return codec


class Speech:
    """Keeps turns and the lists per voice in step with the store."""

    def __init__(self, lines: list[str], store: SpeechStore, turns: Turns) -> None:
        self.lines, self.store, self.turns = lines, store, turns
        self._voices: list[int] = []

    def update(self) -> None:
        """Takes newly encoded utterances over."""
        done, store = len(self.turns.starts), self.store
        if done < store.encoded:
            first = store.starts[done]
            codes = store.codes[first : store.used].cpu().numpy()
            texts = [self.lines[i] for i in store.lines[done:]]
            self.turns.add(texts, codes, store.sizes[done:])
            self._voices += [VOICES.index(voice_of(text)) for text in texts]

    def members(self, validation: bool) -> dict[str, np.ndarray]:
        """Utterances per voice; every 100th line is kept for validation."""
        count = len(self.turns.starts)
        lines, voices = np.array(self.store.lines[:count]), np.array(self._voices[:count])
        held = lines % 100 == 0
        return {v: np.flatnonzero((voices == i) & (held == validation)) for i, v in enumerate(VOICES)}


def check_codes(store: SpeechStore, log: Log) -> None:
    """Logs how many of the 1000 codes each codebook uses, as a perplexity."""
    codes = store.codes[: store.used].long()
    uses = torch.stack([torch.bincount(codes[:, i], minlength=1024) for i in range(8)]).double()
    share = uses / uses.sum(1, keepdim=True)
    entropy = -(share * share.clamp(min=1e-12).log()).sum(1)
    log("codes", perplexity=", ".join(f"{v:.0f}" for v in entropy.exp().tolist()), frames=store.used)


def train_dual_ar(
    args: argparse.Namespace, codec: Firefly, store: SpeechStore, reader: ShardReader, lines: list[str], log: Log
) -> None:
    """Second phase, until the time is up; leaves the finished folder."""
    device, folder = store.device, args.out / "tiny"
    tokenizer = Tokenizer.from_folder(folder)
    turns = Turns(tokenizer, device, args.columns)
    speech = Speech(lines, store, turns)
    speech.update()
    members, held = speech.members(False), speech.members(True)
    log("dual_ar", utterances=len(turns.starts), columns=turns.used, held=sum(map(len, held.values())))
    model = new_dual_ar(tokenizer, device)
    if args.resume and (args.resume / "model.pth").exists():
        model.load_state_dict(torch.load(args.resume / "model.pth", weights_only=True))
    trainer = DualARTrainer(model, compiled=args.compile)
    log("dual_ar", parameters=sum(p.numel() for p in model.parameters()))
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    decoder = DecoderTrainer(codec, store, args.crops, args.frames, stream=torch.cuda.Stream() if cuda else None)
    torch.backends.cudnn.benchmark = False
    log("dual_ar", decoder="captured")
    rng = np.random.default_rng(3)
    begin = log.seconds()
    total, counted, saved, polled, logged = torch.zeros(4, device=device), 0, time.time(), time.time(), time.time()

    def state() -> dict[str, Tensor]:
        return {name: p.detach() for name, p in model.named_parameters()}

    def validate() -> tuple[float, float]:
        seen = torch.zeros(2, device=device)
        fixed = np.random.default_rng(4)
        count = 0
        for starts, sizes, length in batches(turns, held, args.budget, fixed, pool=max(20, args.pool // 10)):
            columns, labels = turns.gather(starts.to(device), sizes.to(device), length)
            seen += torch.stack(trainer.validate(columns, labels, args.fast))
            count += 1
        return tuple((seen / max(1, count)).tolist())

    main = torch.cuda.Stream(priority=-1) if cuda else None
    if cuda:
        main.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(main)
    while log.seconds() < args.until:
        for starts, sizes, length in batches(turns, members, args.budget, rng, pool=args.pool):
            progress = (log.seconds() - begin) / (args.until - begin)
            if progress >= 1:
                break
            columns, labels = turns.gather(starts.to(device), sizes.to(device), length)
            total[:2] += torch.stack(trainer.step(columns, labels, args.fast, progress))
            counted += 1
            if trainer.steps > args.alone:
                decoder.step(progress)
            if counted == args.every:
                slow, fast, *_ = (total / counted).tolist()
                mel = decoder.recent[1].item()
                rate = counted / (time.time() - logged)
                log(
                    "dual_ar", step=trainer.steps, slow=slow, fast=fast, rate=rate, decoder_steps=decoder.steps, mel=mel
                )
                total.zero_()
                counted, logged = 0, time.time()
        if time.time() - polled > 12:
            polled = time.time()
            if store.take(reader, 60, codec):
                speech.update()
                members = speech.members(False)
        if time.time() - saved > args.save_every:
            saved = time.time()
            trainer.swap_average()
            slow, fast = validate()
            write_weights(folder, state(), decoder.averaged_state())
            trainer.swap_average()
            log("saved", step=trainer.steps, val_slow=slow, val_fast=fast, utterances=len(turns.starts))
    raw = validate()
    trainer.swap_average()
    mean = validate()
    if sum(raw) < sum(mean):
        trainer.swap_average()
    write_weights(folder, state(), decoder.averaged_state())
    log("done", step=trainer.steps, decoder_steps=decoder.steps, val_slow=raw[0], val_fast=raw[1],
        average_slow=mean[0], average_fast=mean[1], utterances=len(turns.starts),
        hours=store.used * 2048 / 44100 / 3600)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny"))
    parser.add_argument("--corpus", type=Path, help="lines made by corpus.py; made anew if not given")
    parser.add_argument("--flite", help="folder of libflite.so.1; the system's if not given")
    parser.add_argument("--workers", type=int, default=13, help="processes that speak")
    parser.add_argument("--codec-until", type=float, default=480, help="seconds after the start")
    parser.add_argument("--until", type=float, default=1330, help="seconds after the start")
    parser.add_argument("--crops", type=int, default=16)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--budget", type=int, default=49_152, help="columns per step of the transformers")
    parser.add_argument("--fast", type=int, default=10_240, help="frames per step of the fast transformer")
    parser.add_argument("--pool", type=int, default=8000)
    parser.add_argument("--alone", type=int, default=200, help="steps of the transformers before the decoder joins in")
    parser.add_argument("--audio-frames", type=int, default=13_000_000)
    parser.add_argument("--columns", type=int, default=60_000_000)
    parser.add_argument("--every", type=int, default=200, help="steps between two lines of the log")
    parser.add_argument("--save-every", type=float, default=75)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--resume", type=Path, help="folder whose codec, and transformers if there, to go on from")
    parser.add_argument("--warm", action="store_true", help="only compile")
    args = parser.parse_args()
    log = Log(args.out, time.time())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    if args.warm:
        warm(args, device)
        return
    write_tokenizer(args.out / "tiny")
    write_config(args.out / "tiny", TINY_DUAL_AR)
    warming = subprocess.Popen([sys.executable, *sys.argv, "--warm"])
    if args.corpus:
        lines = gzip.decompress(args.corpus.read_bytes()).decode().split("\n")
    else:
        from corpus import build_corpus

        lines, counts = build_corpus()
        log("corpus", **counts)
    shards = args.out / "shards"
    speakers = start_speakers(lines, shards, args.workers, args.flite)
    reader = ShardReader(shards)
    reader.start()
    log("start", lines=len(lines), seconds_of_one=len(Flite(args.flite).speak("It speaks.", "slt")) / 16_000)
    store = SpeechStore(device, args.audio_frames, args.audio_frames * 2)
    if args.resume:
        codec = Firefly(TINY_CODEC)
        codec.load_state_dict(torch.load(args.resume / CODEC_FILE, weights_only=True))
        codec = codec.to(device)
        while log.seconds() < args.codec_until:
            store.take(reader, 60)
    else:
        codec = train_codec(args, store, reader, log)
    if warming.wait() != 0:
        args.compile = False
        log("dual_ar", compile="failed, see above: going on without")
    store.take(reader, 400)
    store.encode_all(codec)
    check_codes(store, log)
    train_dual_ar(args, codec, store, reader, lines, log)
    for process in speakers:
        process.terminate()


if __name__ == "__main__":
    main()
