"""Live sessions against a real server: how far text lags behind speech, how right it is, and what files wait beside it.

Every clip is first sent as a file: its word times say when each word ended, its text is what live text is compared
with. Then sessions stream clips in real time, with noise of their own that nobody hears; one more caller sends files
of 5 s one after another, alone and beside the most sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.bench.live.delays import TimedWord, delays_s, plain, shown_words
from choral.bench.live.files import FILE_S, FileSender, noisy, transcribe
from choral.bench.live.speaker import PAUSE_S, Visit, speak
from choral.bench.load import Sound
from choral.bench.wer import Score, normaliser, score

SPREAD_S = 2.0  # sessions start within this time


@dataclass(frozen=True)
class Plan:
    sessions: tuple[int, ...] = (1, 5, 20)
    seconds: float = 30.0  # that each session speaks, at least
    files: int = 10  # that are sent to an idle server


@dataclass(frozen=True)
class Spread:
    median_s: float
    p95_s: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(float("nan"), float("nan"), 0)
        return cls(float(np.median(seconds)), float(np.percentile(seconds, 95)), len(seconds))


@dataclass(frozen=True)
class LiveLoad:
    sessions: int
    text: Spread  # words behind speech
    completed: Spread  # whole texts behind the end of turns
    is_faithful: bool  # all pieces joined are the whole texts
    live: Score
    files: Spread | None  # requests of 5 s beside the sessions; None: none were sent


@dataclass(frozen=True)
class LiveReport:
    loads: tuple[LiveLoad, ...]
    files_alone: Spread
    plain: Score  # of the same clips, sent as files


@dataclass(frozen=True)
class Known:
    """A clip as a file: its words with their ends."""

    sound: Sound
    text: str
    words: tuple[tuple[str, float], ...]


def measure(url: str, sounds: Sequence[Sound], plan: Plan, tell: Callable[[str], None]) -> LiveReport:
    known = [_known(url, sound) for sound in sounds]
    files = FileSender(url, known[0].sound.samples)
    files.send(2)  # whatever is slow the first time
    alone = files.send(plan.files)
    tell(f"a file of {FILE_S:g} s alone: {np.median(alone):.2f} s")
    loads = []
    for n_sessions in plan.sessions:
        beside = files if n_sessions == max(plan.sessions) else None
        loads.append(_load(url, known, n_sessions, plan, beside))
        tell(f"{n_sessions} sessions: text {loads[-1].text.median_s:.2f} s behind speech")
    scores = [_score(one.sound, one.text) for one in known]
    return LiveReport(tuple(loads), Spread.of(alone), sum(scores[1:], scores[0]))


def _load(url: str, known: Sequence[Known], n_sessions: int, plan: Plan, files: FileSender | None) -> LiveLoad:
    shares = [_share(known, number, plan.seconds) for number in range(n_sessions)]
    with files or contextlib.nullcontext():
        visits = asyncio.run(_visits(url, shares))
    pairs = list(zip(shares, visits, strict=True))
    delays = [delay for share, visit in pairs for delay in delays_s(_said(share, visit), shown_words(visit.shown))]
    ends = [
        turn.at_s - visit.time_of(visit.ends[item] - 1)
        for visit in visits
        for item, turn in visit.completed.items()
        if item in visit.ends
    ]
    scores = [_score_all(share, visit.text) for share, visit in pairs]
    return LiveLoad(
        sessions=n_sessions,
        text=Spread.of(delays),
        completed=Spread.of(ends),
        is_faithful=all(visit.is_faithful for visit in visits),
        live=sum(scores[1:], scores[0]),
        files=Spread.of(files.seconds) if files is not None else None,
    )


async def _visits(url: str, shares: Sequence[Sequence[Known]]) -> list[Visit]:
    speakers = [
        speak(url, [noisy(one.sound.samples, (number, index)) for index, one in enumerate(share)], delay_s)
        for number, (share, delay_s) in enumerate(zip(shares, np.linspace(0, SPREAD_S, len(shares)), strict=True))
    ]
    return list(await asyncio.gather(*speakers))


def _share(known: Sequence[Known], number: int, seconds: float) -> list[Known]:
    """The clips of one session: each starts with another."""
    share, filled_s = [], 0.0
    for one in cycle([*known[number % len(known) :], *known[: number % len(known)]]):
        share.append(one)
        filled_s += one.sound.duration_s + PAUSE_S
        if filled_s >= seconds:
            break
    return share


def _said(share: Sequence[Known], visit: Visit) -> list[TimedWord]:
    return [
        TimedWord(plain(word), visit.time_of(start + round(end_s * SAMPLE_RATE)))
        for one, start in zip(share, visit.starts, strict=True)
        for word, end_s in one.words
    ]


def _known(url: str, sound: Sound) -> Known:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = transcribe(url, noisy(sound.samples, (0,)), fields)
    return Known(sound, answer["text"], tuple((word["word"], word["end"]) for word in answer["words"]))


def _score(sound: Sound, heard: str) -> Score:
    return score(sound.text or "", heard, normaliser(sound.language or "en"))


def _score_all(share: Sequence[Known], heard: str) -> Score:
    said = " ".join(one.sound.text or "" for one in share)
    return score(said, heard, normaliser(share[0].sound.language or "en"))
