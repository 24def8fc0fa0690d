"""Who asks: proven by the loopback address, a certificate, OIDC or a token."""
