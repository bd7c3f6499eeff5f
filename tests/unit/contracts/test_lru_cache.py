from noetl_contracts.lru_cache import LruCache


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    cache: LruCache[str, int] = LruCache(entries_max=2)
    cache.keep_value("a", 1)
    cache.keep_value("b", 2)
    assert cache.find_value("a") == 1
    cache.keep_value("c", 3)
    assert cache.find_value("b") is None
    assert (cache.find_value("a"), cache.find_value("c")) == (1, 3)


def test_weights_are_held_to_their_sum_and_the_latest_value_stays() -> None:
    cache: LruCache[str, str] = LruCache(weight_max=10)
    for name in "abc":
        cache.keep_value(name, name, weight=4)
    assert ("a" in cache, "b" in cache, cache.weight) == (False, True, 8)
    cache.keep_value("large", "large", weight=11)
    assert (len(cache), cache.weight) == (1, 11)
    cache.keep_value("d", "d", weight=1)
    assert (len(cache), cache.weight) == (1, 1)


def test_a_value_that_is_kept_again_counts_once() -> None:
    cache: LruCache[str, int] = LruCache(weight_max=10)
    cache.keep_value("a", 1, weight=6)
    cache.keep_value("a", 2, weight=7)
    assert (cache.find_value("a"), cache.weight) == (2, 7)


def test_dropping_tells_what_was_there() -> None:
    cache: LruCache[str, int] = LruCache(entries_max=2)
    cache.keep_value("a", 1, weight=3)
    assert (cache.drop_value("a"), cache.drop_value("a"), cache.weight) == (1, None, 0)
    cache.keep_value("b", 2, weight=3)
    cache.clear_values()
    assert (len(cache), cache.weight) == (0, 0)
