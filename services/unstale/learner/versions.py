"""Old models that an update may still refer to."""

from collections.abc import Mapping

from torch import Tensor


class VersionStore:
    """Models by version. It holds and forgets; the coordinator counts who refers to which and says when.

    `forget` may be called while another thread reads or adds: every call is one operation on a dict.
    """

    def __init__(self, limit: int) -> None:
        """limit: most versions at a time, >= 1; to exceed it means that somebody does not forget."""
        self._limit = limit
        self._models: dict[int, Tensor] = {}

    def add(self, version: int, model_d: Tensor) -> None:
        """Keep a model, without a copy: nobody writes to it any more. model_d: [d] float32."""
        assert version not in self._models, f"version {version} is already kept"
        assert len(self._models) < self._limit, f"{self._limit} versions are kept and none was forgotten"
        self._models[version] = model_d

    def get(self, version: int) -> Tensor:
        """The model of a version that is kept: the tensor itself, not to be written to."""
        assert version in self._models, f"version {version} is not kept; kept are {sorted(self._models)}"
        return self._models[version]

    def forget(self, version: int) -> None:
        """Let go of a version that was added."""
        assert version in self._models, f"version {version} is not kept; kept are {sorted(self._models)}"
        del self._models[version]

    def __len__(self) -> int:
        return len(self._models)

    def state_dict(self) -> dict[int, Tensor]:
        """version -> model, copied."""
        return {version: model_d.clone() for version, model_d in self._models.items()}

    def load_state_dict(self, state: Mapping[int, Tensor]) -> None:
        """Keep exactly these models, on the devices where they lie."""
        assert len(state) <= self._limit, f"{len(state)} versions, expected at most {self._limit}"
        self._models = dict(state)
