"""The encoder cache: held entries stay, others are evicted least recently used first, bytes are counted."""

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


def test_the_least_recently_used_entry_is_evicted_first():
    cache = filled(30, b"a", b"b", b"c")
    cache.hold(b"a", 1)  # asked for again
    cache.release(b"a", 1)
    cache.put(b"d", "d", 10)
    assert kept(cache) == {b"a", b"c", b"d"}
    assert (cache.n_bytes, len(cache)) == (30, 3)
    assert cache.get(b"a") == "a"


def test_a_large_entry_evicts_several():
    cache = filled(30, b"a", b"b", b"c")
    cache.put(b"d", "d", 20)
    assert kept(cache) == {b"c", b"d"}


def test_held_entries_stay_over_budget():
    cache = filled(20)
    for key in (b"a", b"b", b"c"):
        cache.hold(key, key)
        cache.put(key, "held", 10)
    assert kept(cache) == {b"a", b"b", b"c"}
    assert cache.n_bytes == 30
    cache.release(b"b", b"b")
    assert kept(cache) == {b"a", b"c"}


def test_an_entry_is_held_until_its_last_holder_releases_it():
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


def test_an_entry_can_be_held_and_released_before_it_is_put():
    cache = filled(30)
    cache.hold(b"a", 1)
    cache.release(b"a", 1)
    assert kept(cache) == set()
    with pytest.raises(KeyError):
        cache.release(b"a", 1)


def test_clear_keeps_held_entries():
    cache = filled(30, b"a", b"b")
    cache.hold(b"b", 1)
    cache.clear()
    assert kept(cache) == {b"b"}


def test_integrity_check_finds_a_cache_over_budget():
    cache = filled(20, b"a", b"b")
    cache.budget_bytes = 19
    with pytest.raises(AssertionError, match="over budget"):
        cache.check_integrity()


def test_integrity_check_finds_holds_without_holder():
    cache = filled(20, b"a")
    cache._holders[b"a"] = set()
    with pytest.raises(AssertionError, match="no holder"):
        cache.check_integrity()


def test_integrity_check_finds_miscounted_bytes():
    cache = filled(30, b"a", b"b")
    cache.n_bytes -= 1
    with pytest.raises(AssertionError, match="miscounted"):
        cache.check_integrity()


@pytest.mark.parametrize("key", [b"a", b"b", b"c"])
def test_integrity_check_finds_entries_held_and_evictable_or_neither(key: bytes):
    cache = filled(30, b"a", b"b")
    cache.hold(b"a", 1)
    cache._evictable.update({key: None}) if key != b"b" else cache._evictable.clear()
    with pytest.raises(AssertionError, match="neither held nor evictable"):
        cache.check_integrity()


def test_putting_a_key_twice_is_refused():
    cache = filled(30, b"a")
    with pytest.raises(AssertionError):
        cache.put(b"a", "again", 10)
