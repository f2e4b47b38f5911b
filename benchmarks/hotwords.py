"""Recall of rare words with and without hotwords among a thousand others, and the errors in all other words.

    python benchmarks/hotwords.py tiny.en --manifest speech/manifest.jsonl --terms Helstone,Thornton

A line of the manifest has the keys `file`, `text` and `language`. The recall is over all occurrences of the terms in
the references; the word error rate is over all words, and over the words that are not terms.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import choral
from choral.bench.wer import Score, compare_words
from choral.model.languages import NAMES

STARTS = "Al Ber Cal Dor El Fen Gar Hol Ing Jar Kel Lan Mar Nor Os Pem Quil Ros Sher Thorn Ul Ver Wes Yar Zel"
ENDS = "bury combe dale den field ford ham hurst ley low man mere ness ridge sted stone ton vale wick worth"


@dataclass(frozen=True)
class Clip:
    path: Path
    text: str


@dataclass(frozen=True)
class Result:
    n_found: int
    n_expected: int
    n_false: int  # occurrences of terms that nobody said, distractors included
    wer: Score
    wer_of_rest: Score

    def __str__(self) -> str:
        return (
            f"recall {self.n_found}/{self.n_expected}, false {self.n_false}, WER {self.wer.percent:.2f} % "
            f"({self.wer.n_errors}), of the rest {self.wer_of_rest.percent:.2f} % ({self.wer_of_rest.n_errors})"
        )


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


def measure(model: choral.Model, clips: Sequence[Clip], terms: set[str], others: set[str], **options: Any) -> Result:
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
    return Result(n_found, n_expected, n_false, wer, rest)


def read_clips(manifest: Path) -> Iterable[Clip]:
    for line in manifest.read_text().splitlines():
        fields = json.loads(line)
        if fields["language"] == "en":
            yield Clip(manifest.parent / fields["file"], fields["text"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--terms", required=True)
    parser.add_argument("--distractors", type=int, default=1000)
    parser.add_argument("--boosts", default="0,2")
    parser.add_argument("--beam-sizes", default="1,5")
    arguments = parser.parse_args()
    clips = [
        clip for clip in read_clips(arguments.manifest) if not {"address", "cold"} & set(clip.path.stem.split("_"))
    ]
    spoken = {word for clip in clips for word in words_of(clip.text)}
    terms = arguments.terms.split(",")
    others = distractors(spoken, arguments.distractors)
    hotwords = random.Random(3).sample([*terms, *others], len(terms) + len(others))
    own = {word for term in terms for word in words_of(term)}
    foreign = {word for term in others for word in words_of(term)}
    with choral.load(arguments.model, engine="torch", threads=1) as model:
        for beam_size in map(int, arguments.beam_sizes.split(",")):
            for boost in map(float, arguments.boosts.split(",")):
                given = {"hotwords": hotwords, "hotword_boost": boost} if boost else {}
                result = measure(model, clips, own, foreign, beam_size=beam_size, **given)
                print(f"{arguments.model} beams {beam_size} boost {boost:g}: {result}", flush=True)


if __name__ == "__main__":
    main()
