"""Who said each word, in conversations made of clips whose texts and speakers are known?

FOLDER has clips named as in LibriSpeech, with transcripts. A word is right if its speaker is the one who says it: where
two speak at once, the one in whose text it is. Conversations are made without overlaps and with them, and transcribed
with diarization and without, for the time that diarization adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from choral.api import Model
from choral.audio.constants import SAMPLE_RATE
from choral.bench.diarization_error import DiarizationError, diarization_error, matching_speakers
from choral.bench.labelled_clips import read_corpus
from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.console import format_table, message, write_stdout
from choral.cli.shared_flags import load_model
from choral.diarization import SpeakerTurn
from choral.transcript import Word
from support.made_conversations import MadeConversation, SpokenTurn, clip_voices, make_conversation, words_of
from support.script import run_script

NEAR_S = 0.3  # beyond the ends of a turn, where a word of it may still be found
HEADER = ("speakers", "overlap", "found", "words", "wrong %", "alone: wrong %", "DER %", "CPU s", "without", "added %")


@dataclass(frozen=True)
class WordErrors:
    n_words: int = 0
    n_wrong: int = 0
    n_alone: int = 0  # words where one person speaks
    n_alone_wrong: int = 0

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def percent(self) -> float:
        return 100 * self.n_wrong / max(1, self.n_words)

    @property
    def percent_alone(self) -> float:
        return 100 * self.n_alone_wrong / max(1, self.n_alone)


@dataclass(frozen=True)
class ConversationResult:
    n_speakers: int
    has_overlap: bool
    n_found: int
    words: WordErrors
    error: DiarizationError
    cpu_s: float
    plain_cpu_s: float

    def fields(self) -> dict[str, object]:
        return {
            "speakers": self.n_speakers,
            "overlap": self.has_overlap,
            "found": self.n_found,
            "words": self.words.n_words,
            "wrong_percent": self.words.percent,
            "alone_wrong_percent": self.words.percent_alone,
            "der_percent": self.error.rate_percent,
            "cpu_s": self.cpu_s,
            "plain_cpu_s": self.plain_cpu_s,
        }


def word_errors(words: Sequence[Word], spoken: Sequence[SpokenTurn], found: Sequence[SpeakerTurn]) -> WordErrors:
    """Words far from all turns do not count: nobody says them."""
    names = matching_speakers([each.turn for each in spoken], found)
    errors = WordErrors()
    for word in words:
        middle = (word.start + word.end) / 2
        near = [each for each in spoken if each.turn.start - NEAR_S <= middle <= each.turn.end + NEAR_S]
        if not near:
            continue
        said = [each for each in near if set(words_of(word.text)) <= set(each.words)] or near
        is_alone = len({each.turn.speaker for each in near}) == 1
        is_wrong = word.speaker not in {names.get(each.turn.speaker) for each in said}
        errors += WordErrors(1, is_wrong, is_alone, is_alone and is_wrong)
    return errors


def measure(model: Model, talk: MadeConversation, has_overlap: bool) -> ConversationResult:
    started_s = time.process_time()
    model.transcribe(talk.samples[1:], language="en")  # not the same samples: encoded windows may be kept for a while
    plain_s = time.process_time() - started_s
    transcript = model.transcribe(talk.samples, language="en", word_timestamps=True, diarize=True)
    words = [word for segment in transcript.segments for word in segment.words or ()]
    return ConversationResult(
        n_speakers=len({turn.speaker for turn in talk.turns}),
        has_overlap=has_overlap,
        n_found=len(transcript.speakers),
        words=word_errors(words, talk.spoken, transcript.turns),
        error=diarization_error(talk.turns, transcript.turns, [(0.0, talk.duration)]),
        cpu_s=time.process_time() - started_s - plain_s,
        plain_cpu_s=plain_s,
    )


def table_line(result: ConversationResult) -> tuple[str, ...]:
    return (
        str(result.n_speakers),
        "yes" if result.has_overlap else "no",
        str(result.n_found),
        str(result.words.n_words),
        f"{result.words.percent:.1f}",
        f"{result.words.percent_alone:.1f}",
        f"{result.error.rate_percent:.1f}",
        f"{result.cpu_s:.1f}",
        f"{result.plain_cpu_s:.1f}",
        f"{100 * (result.cpu_s / result.plain_cpu_s - 1):.0f}",
    )


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="clips with transcripts, named as in LibriSpeech")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[2, 4, 6], metavar="N", help=describe("numbers of speakers", "2 4 6")
    )
    parser.add_argument("--minutes", type=float, default=3, help=describe("length of each conversation", 3))
    parser.add_argument("--seed", type=int, default=1, metavar="N", help=describe("seed of the conversations", 1))


def run(arguments: argparse.Namespace) -> int:
    corpus = read_corpus(arguments.folder)
    results = []
    with load_model(arguments, optimize_for="throughput") as model:
        model.transcribe(np.zeros(SAMPLE_RATE, np.float32), language="en", diarize=True)  # loads the networks
        for n_speakers in arguments.counts:
            for has_overlap in (False, True):
                rng = np.random.default_rng([arguments.seed, n_speakers])
                talk = make_conversation(clip_voices(corpus, n_speakers, rng), arguments.minutes * 60, has_overlap, rng)
                results.append(measure(model, talk, has_overlap))
                if not arguments.quiet:
                    message(", ".join(map(": ".join, zip(HEADER, table_line(results[-1]), strict=True))))
    write_stdout(format_table([HEADER, *map(table_line, results)], numbers=range(len(HEADER))) + "\n")
    fields = {"model": model.name, "minutes": arguments.minutes, "rows": [result.fields() for result in results]}
    write_stdout(json_line("conversations", fields) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, run, usage="FOLDER [options]")
