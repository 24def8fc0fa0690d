"""What a process tells of itself in numbers, and whether it is well.

``table`` lists every metric. A process gives ``Readings`` to its ``Instruments`` when it starts;
they are read at each scrape and at no other time, from counters that the process keeps anyway. No
reading asks ZooKeeper, and nothing in here is ever written to a znode.
"""
