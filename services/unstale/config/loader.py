"""How YAML of ours is read: files, scenarios, and values of variables and options."""

import yaml


class Loader(yaml.SafeLoader):
    """`yaml.SafeLoader`, in which only `true` and `false` are booleans, as in YAML 1.2.

    YAML 1.1 takes `off`, `on`, `yes` and `no` for booleans, too, which would keep one from saying `durability: off`
    without quotes. Where a key is a boolean these words still say which.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (the name and kind that PyYAML has)
        first: [(tag, words) for tag, words in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
