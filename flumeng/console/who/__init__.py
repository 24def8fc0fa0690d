"""Proofs of viewers: the loopback address, a certificate, an OpenID provider or a token."""
