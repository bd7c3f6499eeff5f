"""What happened, as a value: state, fold, checksum."""
