"""Training a base with the masked objective: from scratch, or from an autoregressive model."""
