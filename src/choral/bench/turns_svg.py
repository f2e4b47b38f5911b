"""Draws who spoke when as SVG: a lane for each speaker of the reference, and below one for each speaker found.

A speaker found has the colour of the one in the reference with whom it shares most time, and grey if there is none
left. The image follows the reader's light or dark colour scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from choral.bench.diarization_error import matching_speakers
from choral.bench.trace_svg import COLOURS, MAX_TICKS, TICKS_S, style
from choral.diarization import SpeakerTurn

WIDTH, LEFT, RIGHT, TOP = 960, 132, 24, 62
LANE, BAR, GAP = 20, 15, 30
MIN_WIDTH = 1.0  # of a bar
GREY = "s"  # the class of soft text


class TurnsDrawing:
    def __init__(
        self, reference: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn], duration_s: float, title: str
    ) -> None:
        self.title, self.duration_s = title, max(duration_s, 1e-9)
        self.groups = (("reference", reference), ("found", found))
        matches = matching_speakers(reference, found)
        names = _by_first_turn(reference)
        self.colours = {("reference", name): _colour(number) for number, name in enumerate(names)}
        self.colours |= {("found", mine): _colour(names.index(theirs)) for theirs, mine in matches.items()}
        self.n_lanes = sum(len(_by_first_turn(turns)) for _, turns in self.groups)
        self.height = TOP + self.n_lanes * LANE + GAP + 40

    def x(self, at_s: float) -> float:
        return round(LEFT + at_s / self.duration_s * (WIDTH - LEFT - RIGHT), 1)

    def svg(self) -> str:
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title><style>{style(len(COLOURS))}</style>",
            f'<rect class="background" width="{WIDTH}" height="{self.height}" rx="8"/>',
            f'<text class="h" x="24" y="28">{escape(self.title)}</text>',
        ]
        return "\n".join([*head, *self.lanes(), *self.axis(), "</svg>", ""])

    def lanes(self) -> Iterator[str]:
        y = TOP
        for group, turns in self.groups:
            yield f'<text class="s" x="{LEFT}" y="{y - 6}">{group}</text>'
            for name in _by_first_turn(turns):
                yield f'<rect class="l" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{BAR}" rx="3"/>'
                yield f'<text class="n" x="{LEFT - 8}" y="{y + 11.5}">{escape(_shortened(name))}</text>'
                for turn in turns:
                    if turn.speaker == name:
                        yield self.bar(turn, y, self.colours.get((group, name), GREY))
                y += LANE
            y += GAP

    def bar(self, turn: SpeakerTurn, y: int, colour: str) -> str:
        start, stop = self.x(turn.start), self.x(min(turn.end, self.duration_s))
        width = f"{max(MIN_WIDTH, stop - start):.1f}"
        shown = f"{escape(turn.speaker)}: {turn.start:.2f} to {turn.end:.2f} s"
        place = f'x="{start}" y="{y}" width="{width}" height="{BAR}" rx="2"'
        return f'<rect class="{colour}" {place}><title>{shown}</title></rect>'

    def axis(self) -> Iterator[str]:
        tick_s = next((tick for tick in TICKS_S if self.duration_s / tick <= MAX_TICKS), self.duration_s / MAX_TICKS)
        bottom = self.height - 34
        for index in range(int(self.duration_s / tick_s) + 1):
            x = self.x(index * tick_s)
            yield f'<path class="t" d="M{x} {bottom}v5"/>'
            yield f'<text class="m" x="{x}" y="{bottom + 18}">{index * tick_s:g} s</text>'


def turns_svg(reference: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn], duration_s: float, title: str) -> str:
    return TurnsDrawing(reference, found, duration_s, title).svg()


def _by_first_turn(turns: Sequence[SpeakerTurn]) -> list[str]:
    return list(dict.fromkeys(turn.speaker for turn in sorted(turns, key=lambda turn: turn.start)))


def _colour(number: int) -> str:
    return f"c{number % len(COLOURS)}"


def _shortened(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"
