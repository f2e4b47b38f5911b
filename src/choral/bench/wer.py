"""Word error rate: substitutions, deletions and insertions relative to the words of the reference.

Both texts are normalised as OpenAI does for its published rates: numbers, spelling, punctuation and case do not count;
languages written without spaces are counted by character. The total is over all words, not a mean of clips.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from choral.api import Model
from choral.bench.clips import read_samples
from choral.bench.corpus import LabelledClip
from choral.bench.peers import Peer, PeerConfig, is_installed, not_installed_note, open_peer
from choral.bench.report import json_line
from choral.errors import MissingDependency
from choral.types import TranscribeOptions

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue", "bo", "km"})
Normalise = Callable[[str], str]


@dataclass(frozen=True)
class Score:
    n_words: int
    n_errors: int

    @property
    def percent(self) -> float:
        """Over 100 where more words were inserted than the reference has."""
        return 100 * self.n_errors / max(self.n_words, 1)

    def __add__(self, other: Score) -> Score:
        return Score(self.n_words + other.n_words, self.n_errors + other.n_errors)


@dataclass
class WerReport:
    """The scores of every peer on every clip, in the order of the clips."""

    model: str
    clips: tuple[LabelledClip, ...]
    scores: dict[str, list[Score]]
    spent_s: dict[str, float]
    notes: list[str]

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
        fields = {"model": self.model, "clips": len(self.clips), "systems": systems, "notes": self.notes}
        return json_line("wer", fields)


def measure(
    model: str,
    clips: Sequence[LabelledClip],
    peers: Mapping[str, Peer],
    language: str | None = None,
    notes: Sequence[str] = (),
    on_clip: Callable[[LabelledClip, Mapping[str, Score]], None] = lambda clip, scores: None,
) -> WerReport:
    """Each clip through each peer. The first peer's detected language applies where a clip's is unknown."""
    assert peers
    report = WerReport(model, tuple(clips), {name: [] for name in peers}, dict.fromkeys(peers, 0.0), list(notes))
    for clip in clips:
        normalise: Normalise | None = None
        for name, peer in peers.items():
            started_s = time.monotonic()
            recognized = peer.transcribe(read_samples(clip.path), language or clip.language)
            report.spent_s[name] += time.monotonic() - started_s
            normalise = normalise or normaliser(clip.language or recognized.language)
            report.scores[name].append(score(clip.text, recognized.text, normalise))
        on_clip(clip, {name: scores[-1] for name, scores in report.scores.items()})
    return report


def open_peers(model: Model, options: TranscribeOptions) -> tuple[dict[str, Peer], list[str]]:
    """The peers openai-whisper and faster-whisper with this model's weights and search, and notes on missing ones."""
    from choral.model.store import ModelStore

    peers: dict[str, Peer] = {}
    notes = []
    config = PeerConfig(
        family="",
        library="",
        model=str(ModelStore().path(model.name)),
        device=model.device,
        compute_type="float32" if model.device == "cpu" else "float16",
        temperatures=options.temperatures,
        beam_size=options.beam_size,
        best_of=options.best_of,
        condition_on_previous_text=True,
    )
    for library in ("openai-whisper", "faster-whisper"):
        if is_installed(library):
            peers[library] = open_peer(replace(config, library=library))
        else:
            notes.append(not_installed_note(library))
    return peers, notes


def score(reference: str, hypothesis: str, normalise: Normalise) -> Score:
    reference_words, hypothesis_words = normalise(reference).split(), normalise(hypothesis).split()
    return Score(len(reference_words), edit_distance(reference_words, hypothesis_words))


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


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Levenshtein distance of words, one row of the table at a time.

    Insertions chain along a row; with the column number subtracted, that chain is a running minimum.
    """
    ids = {word: index for index, word in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    hypothesis_ids = np.array([ids[word] for word in hypothesis], dtype=np.int64)
    columns = np.arange(len(hypothesis) + 1)
    row = columns.copy()
    for word in reference:
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (hypothesis_ids != ids[word]))
        row = np.minimum.accumulate(best - columns) + columns
    return int(row[-1])
