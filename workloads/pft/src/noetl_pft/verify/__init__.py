"""The verifier: three witnesses, and checks that tie them to the model and to each other."""
