"""Word error rate: how many words of a text must be changed, left out or added to get what was heard.

Both sides are normalised as OpenAI does for its published rates: numbers, spelling, punctuation and case do not
count; languages written without spaces are counted by character. The total is over all words, not a mean of clips.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from choral.bench.corpus import LabelledClip
from choral.bench.report import this_machine
from choral.errors import MissingDependency

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue", "bo", "km"})
Normalise = Callable[[str], str]


@dataclass(frozen=True)
class Recognized:
    text: str
    language: str


@dataclass(frozen=True)
class System:
    """Something that turns a clip into text: Choral or a peer."""

    name: str
    transcribe: Callable[[LabelledClip], Recognized]


@dataclass(frozen=True)
class Score:
    n_words: int
    n_errors: int

    @property
    def percent(self) -> float:
        """Over 100 where more words were invented than said."""
        return 100 * self.n_errors / max(self.n_words, 1)

    def __add__(self, other: Score) -> Score:
        return Score(self.n_words + other.n_words, self.n_errors + other.n_errors)


@dataclass
class WerReport:
    """The scores of every system on every clip, in the order of the clips."""

    model: str
    clips: tuple[LabelledClip, ...]
    scores: dict[str, list[Score]] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def total(self, system: str) -> Score:
        return sum(self.scores[system], Score(0, 0))

    def json_line(self) -> str:
        systems = {
            name: {
                "wer_percent": round(self.total(name).percent, 3),
                "errors": self.total(name).n_errors,
                "words": self.total(name).n_words,
                "seconds": round(self.spent_s[name], 3),
            }
            for name in self.scores
        }
        clips, notes = len(self.clips), self.notes
        fields = {"benchmark": "wer", "model": self.model, "clips": clips, "systems": systems, "notes": notes}
        return json.dumps({**fields, "machine": asdict(this_machine())}, ensure_ascii=False)


def measure(
    model: str,
    clips: Sequence[LabelledClip],
    systems: Sequence[System],
    notes: Sequence[str] = (),
    on_clip: Callable[[LabelledClip, Mapping[str, Score]], None] = lambda clip, scores: None,
) -> WerReport:
    """Each clip through each system; a clip without a known language is normalised as the first system heard it."""
    assert systems
    report = WerReport(model, tuple(clips), notes=list(notes))
    for system in systems:
        report.scores[system.name] = []
        report.spent_s[system.name] = 0.0
    for clip in clips:
        normalise: Normalise | None = None
        for system in systems:
            started_s = time.monotonic()
            heard = system.transcribe(clip)
            report.spent_s[system.name] += time.monotonic() - started_s
            normalise = normalise or normaliser(clip.language or heard.language)
            report.scores[system.name].append(score(clip.text, heard.text, normalise))
        on_clip(clip, {name: scores[-1] for name, scores in report.scores.items()})
    return report


def score(said: str, heard: str, normalise: Normalise) -> Score:
    said_words, heard_words = normalise(said).split(), normalise(heard).split()
    return Score(len(said_words), edit_distance(said_words, heard_words))


def normaliser(language: str) -> Normalise:
    """Whisper's normaliser for a language."""
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise MissingDependency("word error rates need Whisper's normaliser: pip install 'choral[bench]'") from error
    if language.lower() in ("en", "english"):
        normalise: Normalise = EnglishTextNormalizer()
    else:
        normalise = BasicTextNormalizer(split_letters=language in UNSPACED)
    return normalise


def edit_distance(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest changes, omissions and additions of words, one row of the table at a time.

    Additions chain along a row; with the column number taken off, that chain is a running minimum.
    """
    ids = {word: index for index, word in enumerate(dict.fromkeys([*said, *heard]))}
    heard_ids = np.array([ids[word] for word in heard], dtype=np.int64)
    columns = np.arange(len(heard) + 1)
    row = columns.copy()
    for word in said:
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (heard_ids != ids[word]))
        row = np.minimum.accumulate(best - columns) + columns
    return int(row[-1])
