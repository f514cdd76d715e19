"""A driver that refuses, with the address at which a cluster started by Ray would listen."""

import sys
from multiprocessing.connection import Connection

from ray._private.services import get_node_ip_address

from unstale.workers.channel import Kind, send

if __name__ == "__main__":
    send(Connection(int(sys.argv[1])), Kind.REFUSED, content=get_node_ip_address().encode())
