"""How exact are the times of a known text, aligned with a long recording?

TEXT is a file of plain English text (for example a licence or a book). Its sentences are spoken by three synthetic
voices in turn, so that the time of every word is known. Every 20th sentence is not spoken, and every 20th that is
spoken is missing in the text that is aligned.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choral.api import Model
from choral.audio.constants import SAMPLE_RATE
from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import load_model
from choral.errors import UsageError
from support.flite import VOICES, FliteVoice, SpokenWord
from support.script import run_script

UNSPOKEN, UNWRITTEN, EVERY = 7, 13, 20  # of 20 sentences, the one that is not spoken, and the one that is not written
MIN_WORDS, MAX_WORDS = 3, 40
PAUSES_S = (0.2, 1.5)


@dataclass
class SpokenText:
    pieces: list[npt.NDArray[np.float32]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    words: list[SpokenWord | None] = field(default_factory=list)  # of `written`; None: not spoken
    n_samples: int = 0

    def add(self, samples: npt.NDArray[np.float32]) -> None:
        self.pieces.append(samples)
        self.n_samples += samples.size


def sentences_of(text: str) -> list[str]:
    """Of plain words, so that it is known how each is read."""
    split = (re.findall(r"[a-z]+", part) for part in re.split(r"[.;:!?]\s", text.lower()))
    kept = [words for words in split if MIN_WORDS <= len(words) <= MAX_WORDS]
    return [" ".join(words).capitalize() + "." for words in kept]


def spoken_text(sentences: list[str], seconds: float, seed: int) -> SpokenText:
    spoken, voices, rng = SpokenText(), [FliteVoice(name) for name in VOICES], np.random.default_rng(seed)
    for number, sentence in enumerate(sentences):
        if spoken.n_samples >= seconds * SAMPLE_RATE:
            break
        n_words = len(sentence.split())
        if number % EVERY == UNSPOKEN:
            spoken.written.append(sentence)
            spoken.words += [None] * n_words
            continue
        samples, words = voices[number % len(voices)].speak(sentence)
        if number % EVERY != UNWRITTEN and len(words) == n_words:  # otherwise flite reads a word as two
            offset_s = spoken.n_samples / SAMPLE_RATE
            spoken.written.append(sentence)
            spoken.words += [SpokenWord(word.text, offset_s + word.start, offset_s + word.end) for word in words]
        spoken.add(samples)
        spoken.add(np.zeros(round(rng.uniform(*PAUSES_S) * SAMPLE_RATE), np.float32))
    return spoken


def measure(model: Model, spoken: SpokenText) -> dict[str, float]:
    started_s = time.perf_counter()
    aligned = model.align(np.concatenate(spoken.pieces), " ".join(spoken.written), language="en")
    wall_s = time.perf_counter() - started_s
    pairs = list(zip(spoken.words, aligned.words, strict=True))
    timed = [(word, found) for word, found in pairs if word is not None and found.is_timed]
    starts, ends = (
        np.array([abs(getattr(word, edge) - getattr(found, edge)) for word, found in timed])
        for edge in ("start", "end")
    )
    n_spoken = sum(word is not None for word in spoken.words)
    return {
        "audio_s": spoken.n_samples / SAMPLE_RATE,
        "words": n_spoken,
        "timed_share": len(timed) / n_spoken,
        "unspoken_words": len(pairs) - n_spoken,
        "unspoken_timed_share": sum(word is None and found.is_timed for word, found in pairs)
        / max(1, len(pairs) - n_spoken),
        "start_median_s": float(np.median(starts)),
        "start_p95_s": float(np.quantile(starts, 0.95)),
        "end_median_s": float(np.median(ends)),
        "end_p95_s": float(np.quantile(ends, 0.95)),
        "within_0.2_s_share": float((starts <= 0.2).mean()),
        "times_real_time": spoken.n_samples / SAMPLE_RATE / wall_s,
    }


def add_arguments(parser: Parser) -> None:
    parser.add_argument("text", type=Path, metavar="TEXT", help="file with the text that is spoken")
    parser.add_argument("--minutes", type=float, default=60, help=describe("length of the recording", 60))
    parser.add_argument("--seed", type=int, default=1, metavar="N", help=describe("seed of the pauses", 1))


def run(arguments: argparse.Namespace) -> int:
    try:
        sentences = sentences_of(arguments.text.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{arguments.text} cannot be read: {error.strerror}") from error
    spoken = spoken_text(sentences, arguments.minutes * 60, arguments.seed)
    with load_model(arguments, optimize_for="throughput") as model:
        results = measure(model, spoken)
    rows = [("figure", "value"), *((name, f"{value:.3f}") for name, value in results.items())]
    write_stdout(format_table(rows, numbers=(1,)) + "\n")
    write_stdout(json_line("alignment", {"model": model.name, **results}) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, run, usage="TEXT [options]")
