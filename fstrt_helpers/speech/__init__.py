"""The pipeline: text in, audio out."""

from .pipeline import FishSpeech
from .result import Chunk, Speech, Timings
from .voice import Voice

__all__ = ["Chunk", "FishSpeech", "Speech", "Timings", "Voice"]
