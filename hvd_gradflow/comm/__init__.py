"""Communication: messages between ranks, and what protects them on bad links."""
