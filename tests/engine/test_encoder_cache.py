"""What is held stays, what was not asked for the longest goes, and the bytes are those of the entries."""

from __future__ import annotations

import pytest

from choral.engine.encoder_cache import EncoderCache


def filled(budget_bytes: int, *keys: bytes) -> EncoderCache[str]:
    cache: EncoderCache[str] = EncoderCache(budget_bytes)
    for key in keys:
        cache.put(key, key.decode(), 10)
    return cache


def kept(cache: EncoderCache[str]) -> set[bytes]:
    cache.check_integrity()
    return {bytes([letter]) for letter in b"abcdef" if bytes([letter]) in cache}


def test_the_least_recently_used_goes_first():
    cache = filled(30, b"a", b"b", b"c")
    cache.hold(b"a", 1)  # asked for again
    cache.release(b"a", 1)
    cache.put(b"d", "d", 10)
    assert kept(cache) == {b"a", b"c", b"d"}
    assert (cache.n_bytes, len(cache)) == (30, 3)
    assert cache.get(b"a") == "a"


def test_large_entries_push_out_several():
    cache = filled(30, b"a", b"b", b"c")
    cache.put(b"d", "d", 20)
    assert kept(cache) == {b"c", b"d"}


def test_what_is_held_stays_though_it_is_over_the_budget():
    cache = filled(20)
    for key in (b"a", b"b", b"c"):
        cache.hold(key, key)
        cache.put(key, "held", 10)
    assert kept(cache) == {b"a", b"b", b"c"}
    assert cache.n_bytes == 30
    cache.release(b"b", b"b")
    assert kept(cache) == {b"a", b"c"}


def test_it_is_held_until_the_last_holder_lets_go():
    cache = filled(0)
    cache.hold(b"a", 1)
    cache.hold(b"a", 2)
    cache.put(b"a", "a", 10)
    cache.release(b"a", 1)
    assert kept(cache) == {b"a"}
    assert cache.holders == {2}
    cache.release(b"a", 2)
    assert kept(cache) == set()
    assert cache.holders == set()


def test_a_result_that_never_came_can_be_let_go():
    cache = filled(30)
    cache.hold(b"a", 1)
    cache.release(b"a", 1)
    assert kept(cache) == set()
    with pytest.raises(KeyError):
        cache.release(b"a", 1)


def test_clearing_spares_what_is_held():
    cache = filled(30, b"a", b"b")
    cache.hold(b"b", 1)
    cache.clear()
    assert kept(cache) == {b"b"}


def test_an_overfull_cache_is_noticed():
    cache = filled(20, b"a", b"b")
    cache.budget_bytes = 19
    with pytest.raises(AssertionError, match="over budget"):
        cache.check_integrity()


def test_a_hold_without_holder_is_noticed():
    cache = filled(20, b"a")
    cache._holders[b"a"] = set()
    with pytest.raises(AssertionError, match="no holder"):
        cache.check_integrity()


def test_bytes_that_are_miscounted_are_noticed():
    cache = filled(30, b"a", b"b")
    cache.n_bytes -= 1
    with pytest.raises(AssertionError, match="miscounted"):
        cache.check_integrity()


@pytest.mark.parametrize("key", [b"a", b"b", b"c"])
def test_a_result_that_is_held_and_evictable_or_neither_is_noticed(key: bytes):
    cache = filled(30, b"a", b"b")
    cache.hold(b"a", 1)
    cache._evictable.update({key: None}) if key != b"b" else cache._evictable.clear()
    with pytest.raises(AssertionError, match="neither held nor evictable"):
        cache.check_integrity()


def test_nothing_is_put_twice():
    cache = filled(30, b"a")
    with pytest.raises(AssertionError):
        cache.put(b"a", "again", 10)
