"""Flows of other sites as an input, read through the gateways of these sites."""
