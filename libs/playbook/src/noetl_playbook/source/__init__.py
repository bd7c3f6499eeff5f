"""From text to values that know their lines."""
