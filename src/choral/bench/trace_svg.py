"""Draws a trace as SVG: the batch over time, with a lane for each slot and a bar for each window, coloured by caller.

The pale start of a bar is the time before its first token: encoder and prefill. Encoder steps are shaded across all
lanes, because all slots wait for them. The image follows the reader's light or dark colour scheme.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from choral.bench.trace import EngineTrace, SlotUse

WIDTH, LEFT, RIGHT, TOP = 960, 62, 24, 84
LANE, BAR = 20, 15
CHART, GAP = 46, 26
MIN_LABEL_WIDTH = 26
COLOURS = (
    ("#4269d0", "#6b8df0"),
    ("#e07b39", "#f2a065"),
    ("#2a9d6f", "#4cc38f"),
    ("#c0417e", "#e873a9"),
    ("#7a5cc9", "#a48bf0"),
    ("#b98a08", "#dcb440"),
    ("#258fa8", "#4fbcd6"),
    ("#8a6250", "#bd9482"),
)  # on a light background, on a dark one
LIGHT = {"background": "#ffffff", "lane": "#f4f5f7", "text": "#24292f", "soft": "#6a737d", "mark": "#24292f"}
DARK = {"background": "#0d1117", "lane": "#161b22", "text": "#e6edf3", "soft": "#8b949e", "mark": "#e6edf3"}
TICKS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
MAX_TICKS = 12


class TraceDrawing:
    def __init__(self, trace: EngineTrace, title: str) -> None:
        self.trace, self.title = trace, title
        self.n_lanes = 1 + max((slot for use in trace.slot_uses for slot in use.slots), default=0)
        self.n_callers = max((use.caller for use in trace.slot_uses), default=0)
        self.lanes_bottom = TOP + self.n_lanes * LANE
        self.chart_bottom = self.lanes_bottom + GAP + CHART
        self.height = self.chart_bottom + 46

    def x(self, at_s: float) -> float:
        return round(LEFT + at_s / max(self.trace.duration_s, 1e-9) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, slot: int) -> int:
        return TOP + slot * LANE

    def svg(self) -> str:
        parts = [*self.head(), *self.legend(), *self.lanes(), *self.bars(), *self.encoder_marks(), *self.chart()]
        return "\n".join([*parts, *self.axis(), "</svg>", ""])

    def head(self) -> Iterator[str]:
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        yield f"<title>{escape(self.title)}</title>"
        yield f"<style>{style(self.n_callers)}</style>"
        yield f'<rect class="background" width="{WIDTH}" height="{self.height}" rx="8"/>'
        yield f'<text class="h" x="{LEFT}" y="28">{escape(self.title)}</text>'

    def legend(self) -> Iterator[str]:
        counts = {caller: sum(use.caller == caller for use in self.trace.slot_uses) for caller in self.callers()}
        step = min(108, (WIDTH - LEFT - RIGHT) // max(1, len(counts) + 1))
        for position, (caller, n_windows) in enumerate(counts.items()):
            x = LEFT + position * step
            yield f'<rect class="c{colour_of(caller)}" x="{x}" y="43" width="11" height="11" rx="3"/>'
            label = f"caller {caller}" + (f" ({n_windows})" if n_windows > 1 else "")
            yield f'<text class="s" x="{x + 16}" y="53">{label if step > 60 else caller}</text>'
        x = LEFT + len(counts) * step
        yield f'<rect class="e" x="{x}" y="43" width="11" height="11"/>'
        yield f'<text class="s" x="{x + 16}" y="53">encoder step</text>'

    def callers(self) -> list[int]:
        return sorted({use.caller for use in self.trace.slot_uses})

    def lanes(self) -> Iterator[str]:
        middle = (TOP + self.lanes_bottom) / 2
        turned = f'transform="rotate(-90 18 {middle})" text-anchor="middle"'
        yield f'<text class="s" x="18" y="{middle}" {turned}>slots</text>'
        width = WIDTH - LEFT - RIGHT
        for slot in range(self.n_lanes):
            yield f'<rect class="l" x="{LEFT}" y="{self.y(slot)}" width="{width}" height="{BAR}" rx="3"/>'
            yield f'<text class="n" x="{LEFT - 8}" y="{self.y(slot) + 11.5}">{slot}</text>'

    def encoder_marks(self) -> Iterator[str]:
        steps = [step for step in self.trace.steps if step.kind == "Encode"]
        height = self.lanes_bottom - TOP + 4
        path = "".join(
            f"M{self.x(step.start_s)} {TOP - 6}h{max(0.6, self.x(step.stop_s) - self.x(step.start_s)):.1f}v{height}"
            f"H{self.x(step.start_s)}z"
            for step in steps
        )
        yield f'<path class="e" d="{path}"/>'

    def bars(self) -> Iterator[str]:
        for use in self.trace.slot_uses:
            for slot in use.slots:
                yield from self.bar(use, slot)

    def bar(self, use: SlotUse, slot: int) -> Iterator[str]:
        start, begun, stop = self.x(use.start_s), self.x(use.begun_s), self.x(use.stop_s)
        y, colour = self.y(slot), colour_of(use.caller)
        seconds = f"{use.start_s:.2f} to {use.stop_s:.2f} s"
        yield f"<g><title>caller {use.caller}, window {use.number}: {seconds}</title>"
        yield f'<rect class="c{colour} w" x="{start}" y="{y}" width="{stop - start:.1f}" height="{BAR}" rx="3"/>'
        yield f'<rect class="c{colour}" x="{begun}" y="{y}" width="{stop - begun:.1f}" height="{BAR}" rx="3"/>'
        if stop - begun >= MIN_LABEL_WIDTH:
            yield f'<text class="b" x="{begun + 5:.1f}" y="{y + 11.5}">{use.caller}·{use.number}</text>'
        yield "</g>"

    def chart(self) -> Iterator[str]:
        """Rows of each decoder step as an area, and waiting windows as a line, on one scale."""
        decodes = [step for step in self.trace.steps if step.kind == "Decode"]
        largest = max([self.n_lanes, *(step.n_waiting for step in self.trace.steps)], default=1)
        bottom, scale = self.chart_bottom, CHART / max(1, largest)
        area = "".join(
            f"M{self.x(step.start_s)} {bottom}V{bottom - step.n_rows * scale:.1f}H{self.x(step.stop_s)}V{bottom}z"
            for step in decodes
        )
        line, before = "", -1
        for step in self.trace.steps:
            if step.n_waiting != before:
                line += f"{'V' if line else f'M{LEFT} '}{bottom - step.n_waiting * scale:.1f}H{self.x(step.stop_s)}"
            else:
                line = line[: line.rindex("H")] + f"H{self.x(step.stop_s)}"
            before = step.n_waiting
        yield f'<path class="a" d="{area}"/><path class="q" d="{line}"/>'
        yield f'<text class="n" x="{LEFT - 8}" y="{bottom - CHART + 9}">{largest}</text>'
        yield f'<text class="n" x="{LEFT - 8}" y="{bottom}">0</text>'
        names = '<tspan class="k">■</tspan> rows in a decoder step   <tspan class="r">━</tspan> windows waiting'
        y = self.lanes_bottom + GAP - 9
        yield f'<text class="s" x="{LEFT}" y="{y}" xml:space="preserve">{names}</text>'
        yield f'<text class="n" x="{WIDTH - RIGHT}" y="{y}">pale: before its first token</text>'

    def axis(self) -> Iterator[str]:
        duration_s = self.trace.duration_s
        tick_s = next((tick for tick in TICKS_S if duration_s / tick <= MAX_TICKS), TICKS_S[-1])
        for index in range(int(duration_s / tick_s) + 1):
            x = self.x(index * tick_s)
            yield f'<path class="t" d="M{x} {self.chart_bottom}v5"/>'
            yield f'<text class="m" x="{x}" y="{self.chart_bottom + 18}">{index * tick_s:g} s</text>'


def svg(trace: EngineTrace, title: str) -> str:
    return TraceDrawing(trace, title).svg()


def colour_of(caller: int) -> int:
    return (caller - 1) % len(COLOURS)


def style(n_callers: int) -> str:
    n_colours = min(n_callers, len(COLOURS))
    return (
        "text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif}.h{font-size:15px;font-weight:600}"
        ".n{text-anchor:end;font-size:10px}.m{text-anchor:middle;font-size:10px}"
        ".b{fill:#fff;font-size:10px;font-weight:600}.w{opacity:.35}.e{opacity:.16}.q{fill:none;stroke-width:1.5}"
        "path{pointer-events:none}"
        + colours(LIGHT, 0, n_colours)
        + "@media(prefers-color-scheme:dark){.b{fill:#0d1117}"
        + colours(DARK, 1, n_colours)
        + "}"
    )


def colours(scheme: dict[str, str], index: int, n_colours: int) -> str:
    rules = [
        f".background{{fill:{scheme['background']}}}.l{{fill:{scheme['lane']}}}.h{{fill:{scheme['text']}}}",
        f".s,.n,.m{{fill:{scheme['soft']}}}.e{{fill:{scheme['mark']}}}.t{{stroke:{scheme['soft']}}}",
        f".a,.k{{fill:{COLOURS[0][index]};opacity:.55}}.q{{stroke:{COLOURS[1][index]}}}.r{{fill:{COLOURS[1][index]}}}",
    ]
    return "".join([*rules, *(f".c{number}{{fill:{COLOURS[number][index]}}}" for number in range(n_colours))])
