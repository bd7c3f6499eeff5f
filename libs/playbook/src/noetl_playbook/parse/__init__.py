"""From a document to the model."""
