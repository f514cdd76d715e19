"""A Ray cluster of two machines with a CPU each, and a head without CPUs, in a process of its own.

    python two_nodes.py

It prints its address. On a line with a number, so many machines are killed, which it prints. It ends with its input.
"""

import sys

from ray.cluster_utils import Cluster

BYTES = 80 * 2**20  # of object memory, each; Ray's minimum


def main() -> None:
    # No dashboard: `pip install ray` does not contain it.
    head = {"num_cpus": 0, "object_store_memory": BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=BYTES) for _ in range(2)]
    _say(f"address {cluster.address}")
    for line in sys.stdin:
        for _ in range(int(line)):
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        _say("left")
    cluster.shutdown()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
