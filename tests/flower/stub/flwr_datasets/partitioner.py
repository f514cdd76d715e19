class IidPartitioner:
    def __init__(self, *, num_partitions: int) -> None:
        self.num_partitions = num_partitions
