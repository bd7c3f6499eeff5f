"""Stored tables read within bounds, however small the bytes are that they come out of."""
