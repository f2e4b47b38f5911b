"""Recall of rare words with and without hotwords among a thousand others, and the errors in all other words.

FOLDER has speech with transcripts as for `choral bench wer`, of which the English clips are used; `--terms` are rare
words in them, or @FILE with one a line. The recall is over all occurrences of the terms in the transcripts.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import choral
from choral.bench.labelled_clips import LabelledClip
from choral.bench.report import json_line
from choral.bench.wer import Score, compare_words
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_clips, read_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import load_model
from choral.errors import UsageError
from choral.model.languages import NAMES
from support.script import run_script

STARTS = "Al Ber Cal Dor El Fen Gar Hol Ing Jar Kel Lan Mar Nor Os Pem Quil Ros Sher Thorn Ul Ver Wes Yar Zel"
ENDS = "bury combe dale den field ford ham hurst ley low man mere ness ridge sted stone ton vale wick worth"


@dataclass(frozen=True)
class RecallResult:
    n_found: int
    n_expected: int
    n_false: int  # occurrences of terms that nobody said, distractors included
    wer: Score
    wer_of_rest: Score

    @property
    def cells(self) -> tuple[str, ...]:
        errors = (f"{score.percent:.2f} %" for score in (self.wer, self.wer_of_rest))
        return (f"{self.n_found} of {self.n_expected}", str(self.n_false), *errors)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("'s", "").replace("'", "").replace("mr.", "mister"))


def distractors(spoken: set[str], n_terms: int) -> list[str]:
    """Cities, languages and made-up names that occur in no reference."""
    cities = {zone.rpartition("/")[2].replace("_", " ") for zone in available_timezones()}
    known = {name for name in {*cities, *(name.title() for name in NAMES.values())} if name.isascii()}
    chosen = sorted(name for name in known if name.replace(" ", "").isalpha() and not spoken & set(words_of(name)))
    choices = random.Random(7)
    while len(chosen) < n_terms:
        name = choices.choice(STARTS.split()) + choices.choice(["", "a", "en", "o"]) + choices.choice(ENDS.split())
        if name.lower() not in spoken and name not in chosen:
            chosen.append(name)
    return choices.sample(chosen, n_terms)


def measure(
    model: choral.Model, clips: Sequence[LabelledClip], terms: set[str], others: set[str], **options: Any
) -> RecallResult:
    n_found = n_expected = n_false = 0
    wer = rest = Score(0)
    for clip in clips:
        written = words_of(model.transcribe(str(clip.path), language="en", **options).text)
        spoken = words_of(clip.text)
        expected, found = Counter(w for w in spoken if w in terms), Counter(w for w in written if w in terms | others)
        n_expected += expected.total()
        n_found += (expected & found).total()
        n_false += (found - Counter(spoken)).total()
        wer += compare_words(spoken, written)
        rest += compare_words([w for w in spoken if w not in terms], [w for w in written if w not in terms])
    return RecallResult(n_found, n_expected, n_false, wer, rest)


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--terms", required=True, metavar="TERM,…|@FILE", help="rare words of the transcripts (required)"
    )
    parser.add_argument(
        "--distractors", type=int, default=1000, metavar="N", help=describe("hotwords that nobody says", 1000)
    )
    parser.add_argument("--boosts", default="0,4", metavar="N,N,…", help=describe("values of hotword_boost", "0,4"))
    parser.add_argument("--beam-sizes", default="1", metavar="N,N,…", help=describe("beam sizes", "1"))


def read_terms(value: str) -> list[str]:
    if not value.startswith("@"):
        return value.split(",")
    try:
        return Path(value[1:]).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the terms {value[1:]} cannot be read: {error.strerror}") from error


def run(arguments: argparse.Namespace) -> int:
    clips = [clip for clip in find_clips(arguments.folder, None, arguments.quiet) if clip.language == "en"]
    spoken = {word for clip in clips for word in words_of(clip.text)}
    terms, others = read_terms(arguments.terms), distractors(spoken, arguments.distractors)
    hotwords = random.Random(3).sample([*terms, *others], len(terms) + len(others))
    own, foreign = ({word for term in each for word in words_of(term)} for each in (terms, others))
    rows: list[tuple[str, ...]] = [("beams", "boost", "recall", "invented", "word errors", "of other words")]
    results = []
    with load_model(arguments, optimize_for="throughput") as model:
        for beam_size in read_counts("beam-sizes", arguments.beam_sizes, 100, example="1,5"):
            for boost in map(float, arguments.boosts.split(",")):
                given = {"hotwords": hotwords, "hotword_boost": boost} if boost else {}
                result = measure(model, clips, own, foreign, beam_size=beam_size, **given)
                rows.append((str(beam_size), f"{boost:g}", *result.cells))
                results.append({"beam_size": beam_size, "boost": boost, **dataclasses.asdict(result)})
    write_stdout(format_table(rows, numbers=range(len(rows[0]))) + "\n")
    write_stdout(json_line("hotwords", {"model": model.name, "terms": terms, "results": results}) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run)
