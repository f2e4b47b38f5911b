"""Form fields for decoding, under the names that OpenAI, vLLM and speaches give them, and the options they stand for.

Fields of these servers without a counterpart here are unknown: the response names them, or refuses them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from choral.options import MAX_TEMPERATURES, TEMPERATURES
from choral.server.forms import FormModel, option_field
from choral.term_lists import MAX_TERM_CHARACTERS

MAX_KEYWORDS = 256
MAX_USER_CHARACTERS = 512
MAX_COMPLETION_TOKENS = 2**31
MAX_WINDOW_TOKENS = 448  # a larger `max_completion_tokens` limits nothing: no window has more
VLLM_BEAMS, MAX_BEAMS = 5, 64  # of `use_beam_search` without a number; of `beam_size`


def _split_temperatures(value: Any) -> Any:
    """One number, several with commas between them, or a JSON list."""
    if isinstance(value, str):
        return value.strip().removeprefix("[").removesuffix("]").split(",", MAX_TEMPERATURES)
    return value


Temperature = Annotated[float, Field(ge=0, le=1)]
Temperatures = Annotated[
    Annotated[tuple[Temperature, ...], Field(max_length=MAX_TEMPERATURES)],
    BeforeValidator(_split_temperatures),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
Keyword = Annotated[str, Field(max_length=MAX_TERM_CHARACTERS)]


class DecodingFields(FormModel):
    temperature: Temperatures | None = Field(None, description="0: rises automatically when decoding fails")
    keywords: list[Keyword] = Field(
        [], alias="keywords[]", max_length=MAX_KEYWORDS, description="OpenAI's name of hotwords"
    )
    seed: int | None = option_field("seed")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_COMPLETION_TOKENS, description="maximum number of tokens per window"
    )
    beam_size: int | None = option_field("beam_size")
    use_beam_search: bool | None = Field(
        None, description=f"true: {VLLM_BEAMS} beams, or as many as beam_size or n says"
    )
    n: int | None = Field(None, ge=1, le=MAX_BEAMS, description="vLLM's number of beams; needs use_beam_search")
    best_of: int | None = option_field("best_of")
    length_penalty: float | None = option_field("length_penalty")
    condition_on_previous_text: bool | None = option_field("condition_on_previous_text")
    vad_filter: bool | None = Field(None, description="the name of vad in speaches")
    without_timestamps: bool | None = Field(None, description="true: one segment for each window")
    user: str | None = Field(None, max_length=MAX_USER_CHARACTERS, description="accepted, and has no effect")

    def decoding_options(self) -> dict[str, Any]:
        """The options of the fields that were sent."""
        max_tokens = self.max_completion_tokens
        options = {
            "temperature": self._temperature(),
            "hotwords": tuple(self.keywords) or None,
            "seed": self.seed,
            "max_tokens": None if max_tokens is None or max_tokens > MAX_WINDOW_TOKENS else max_tokens,
            "beam_size": self._beam_size(),
            "best_of": self.best_of,
            "length_penalty": self.length_penalty,
            "condition_on_previous_text": self.condition_on_previous_text,
            "vad": self.vad_filter,
            "timestamps": None if self.without_timestamps is None else not self.without_timestamps,
        }
        return {name: value for name, value in options.items() if value is not None}

    def _temperature(self) -> float | tuple[float, ...] | None:
        """In OpenAI's API, 0 stands for temperatures that rise when decoding fails."""
        match self.temperature:
            case None | ():
                return None
            case (single,):
                return single or TEMPERATURES
            case several:
                return several

    def _beam_size(self) -> int | None:
        if self.use_beam_search is None:
            return self.beam_size
        return (self.beam_size or self.n or VLLM_BEAMS) if self.use_beam_search else 1
