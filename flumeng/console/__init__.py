"""The web console: pages and an HTTP API over the queries and commands that the CLI uses.

``cluster`` keeps one copy of the cluster for all viewers, ``api`` serves ``/api/v1``, ``pages``
serves HTML, ``actions`` lists the changes that both offer, ``who`` proves who asks, and
``drawing`` makes SVG. Starlette is imported here alone.
"""
