"""How many examples: few on every change, many when somebody asks for a long run."""

from hypothesis import settings

LONG_EXAMPLES = 5_000

settings.register_profile("long", max_examples=LONG_EXAMPLES, deadline=None)
