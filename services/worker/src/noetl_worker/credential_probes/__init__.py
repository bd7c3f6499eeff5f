"""Tests of credentials: each opens what a credential is for, and says what it found."""
