"""Who a process is to the others: identities, the certificates that prove them, and their issuer.

Nothing here knows ZooKeeper, Flight or what a role may do.
"""
