"""The pipeline: text in, audio out."""

from .fallback import Fallback
from .pipeline import FishSpeech
from .result import Chunk, Speech, Timings
from .voice import Voice

__all__ = ["Chunk", "Fallback", "FishSpeech", "Speech", "Timings", "Voice"]
