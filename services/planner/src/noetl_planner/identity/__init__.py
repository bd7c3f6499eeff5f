"""Who asks: tokens of an identity provider, and the sessions of browsers."""
