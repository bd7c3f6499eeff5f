"""The ports of storage in memory: the reference that every other adapter is compared with."""
