"""Communication: codes, transports and links; bytes, never what they mean."""
