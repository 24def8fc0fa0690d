"""The changes that the API and the pages offer, one table for both.

A page links to ``/do/NAME?flow=web``: it shows what the change will do, its command line, and a
form. The API takes ``POST /api/v1`` and the action's path, with the fields as JSON.
"""
