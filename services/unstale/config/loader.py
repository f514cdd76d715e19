"""The YAML loader of files, scenarios, and values of variables and options."""

import yaml


class Loader(yaml.SafeLoader):
    """`yaml.SafeLoader`, in which only `true` and `false` are booleans, as in YAML 1.2.

    In YAML 1.1 `off`, `on`, `yes` and `no` are booleans, too, so that `durability: off` would need quotes. Pydantic
    accepts these words for keys that are booleans.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (the name and kind that PyYAML has)
        first: [(tag, words) for tag, words in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
