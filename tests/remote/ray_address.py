"""A courier that refuses, and says the address at which a cluster that Ray starts in its place would listen."""

import sys
from multiprocessing.connection import Connection

from ray._private.services import get_node_ip_address

from unstale.remote.frames import Kind, say

if __name__ == "__main__":
    say(Connection(int(sys.argv[1])), Kind.REFUSED, content=get_node_ip_address().encode())
