"""The prompt of each window, and what resets it."""

from dataclasses import replace

from choral.longform.prompts import Prompts
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions
from choral.transcript import Segment

TOKENIZER = Tokenizer.for_checkpoint(ModelDims(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4))
SEGMENT = Segment(0, 0, 0.0, 1.0, " x", (), 0.0, -0.1, 1.0, 0.0)


def prompts(**options: object) -> Prompts:
    return Prompts(TranscribeOptions.of(**options), TOKENIZER, 448, has_prefix=True)


def segments(*tokens: int) -> list[Segment]:
    return [replace(SEGMENT, tokens=tokens)]


def test_history_is_truncated_to_max_tokens():
    history = prompts()
    assert history.prompt() == ()
    history.remember(segments(*range(100)), 0.0)
    history.remember(segments(*range(100, 400)), 0.0)
    assert history.prompt() == tuple(range(400 - 223, 400))


def test_high_temperature_resets_the_history():
    history = prompts(initial_prompt="names")
    history.remember(segments(1, 2), 0.5)
    assert history.prompt()[-2:] == (1, 2)
    history.remember(segments(3), 0.6)
    assert history.prompt() == ()


def test_no_conditioning_prompts_only_the_first_window():
    history = prompts(initial_prompt="names", condition_on_previous_text=False)
    assert history.prompt() == tuple(TOKENIZER.encode(" names"))
    history.remember(segments(1, 2), 0.0)
    assert history.prompt() == ()


def test_carry_initial_prompt():
    history = prompts(initial_prompt="names", carry_initial_prompt=True)
    names = tuple(TOKENIZER.encode(" names"))
    history.remember(segments(*range(300)), 0.0)
    assert history.prompt() == names + tuple(range(300))[-(223 - len(names)) :]
    history.remember(segments(7), 1.0)
    assert history.prompt() == names


def test_hotwords_take_at_most_half():
    terms = [f"alpha{number}" for number in range(400)]
    assert prompts(hotwords=terms).prompt() == ()  # they do not fit: only boosted
    assert len(prompts(hotwords=terms[:20]).prompt()) > 40
    history = prompts(hotwords=terms, hotword_boost=0)
    assert len(history.prompt()) == 111
    history.remember(segments(*range(300)), 0.0)
    assert len(history.prompt()) == 223
    assert history.prompt()[-112:] == tuple(range(300))[-112:]


def test_long_carried_prompt_is_truncated():
    history = prompts(initial_prompt="one two three " * 200, carry_initial_prompt=True)
    assert len(history.prompt()) == 223
    history.remember(segments(1, 2, 3), 0.0)
    assert len(history.prompt()) == 223


def test_prefix_is_for_the_first_window():
    history = prompts(prefix="Well")
    assert history.prefix == tuple(TOKENIZER.encode(" Well"))
    history.remember(segments(1), 0.0)
    assert history.prefix == ()
