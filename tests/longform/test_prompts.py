"""What a window is told, and when it is forgotten."""

from dataclasses import replace

from choral.longform.prompts import Prompts
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.types import Segment, TranscribeOptions

TOKENIZER = Tokenizer.for_checkpoint(ModelDims(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4))
SEGMENT = Segment(0, 0, 0.0, 1.0, " x", (), 0.0, -0.1, 1.0, 0.0)


def prompts(**options: object) -> Prompts:
    return Prompts(TranscribeOptions.of(**options), TOKENIZER, 448, has_prefix=True)


def said(*tokens: int) -> list[Segment]:
    return [replace(SEGMENT, tokens=tokens)]


def test_the_text_before_is_told_up_to_its_limit():
    memory = prompts()
    assert memory.prompt() == ()
    memory.remember(said(*range(100)), 0.0)
    memory.remember(said(*range(100, 400)), 0.0)
    assert memory.prompt() == tuple(range(400 - 223, 400))


def test_a_hot_window_is_not_trusted():
    memory = prompts(initial_prompt="names")
    memory.remember(said(1, 2), 0.5)
    assert memory.prompt()[-2:] == (1, 2)
    memory.remember(said(3), 0.6)
    assert memory.prompt() == ()


def test_without_conditioning_only_the_first_window_is_prompted():
    memory = prompts(initial_prompt="names", condition_on_previous_text=False)
    assert memory.prompt() == tuple(TOKENIZER.encode(" names"))
    memory.remember(said(1, 2), 0.0)
    assert memory.prompt() == ()


def test_a_carried_prompt_stays_with_every_window():
    memory = prompts(initial_prompt="names", carry_initial_prompt=True)
    names = tuple(TOKENIZER.encode(" names"))
    memory.remember(said(*range(300)), 0.0)
    assert memory.prompt() == names + tuple(range(300))[-(223 - len(names)) :]
    memory.remember(said(7), 1.0)
    assert memory.prompt() == names


def test_hotwords_stay_and_leave_room_for_the_rest():
    memory = prompts(hotwords="alpha " * 400)
    assert len(memory.prompt()) == 111
    memory.remember(said(*range(300)), 0.0)
    assert len(memory.prompt()) == 223
    assert memory.prompt()[-112:] == tuple(range(300))[-112:]


def test_a_very_long_carried_prompt_keeps_its_end():
    memory = prompts(initial_prompt="one two three " * 200, carry_initial_prompt=True)
    assert len(memory.prompt()) == 223
    memory.remember(said(1, 2, 3), 0.0)
    assert len(memory.prompt()) == 223


def test_the_prefix_is_for_the_first_window():
    memory = prompts(prefix="Well")
    assert memory.prefix == tuple(TOKENIZER.encode(" Well"))
    memory.remember(said(1), 0.0)
    assert memory.prefix == ()
