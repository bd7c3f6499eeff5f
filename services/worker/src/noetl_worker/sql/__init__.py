"""SQL as text: tokens, statements, dialects."""
