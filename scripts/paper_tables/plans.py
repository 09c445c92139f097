"""The numbers of the vDNN paper's figures, from `tightfit plan --format json`."""

from typing import Any

Json = dict[str, Any]


def full_layers(plan: Json) -> set[str]:
    """The layers from the first fully connected one on: only fully connected layers have filters and no convolution."""
    computed = [step for step in plan["steps"] if step["action"] == "compute"]
    full = {step["layer"] for step in computed if step["pass"] == "backward-filter" and "configuration" not in step}
    layers = [layer["layer"] for layer in plan["layers"]]
    return set(layers[min(map(layers.index, full), default=len(layers)) :])


def classifier(plan: Json) -> float:
    """The time [us] that the layers from the first fully connected one on compute."""
    full = full_layers(plan)
    computed = [step for step in plan["steps"] if step["action"] == "compute" and step["layer"] in full]
    return sum(step["end_us"] - step["start_us"] for step in computed)


def performance(plan: Json) -> float:
    """The oracle's time of the feature extraction layers over the plan's."""
    rest = classifier(plan)
    return (plan["baseline_time_us"] - rest) / (plan["step_time_us"] - rest)


def workspace(plan: Json) -> float:
    """The largest workspace of a layer [bytes]."""
    return max(max(layer["forward_workspace_bytes"], layer["backward_workspace_bytes"]) for layer in plan["layers"])


def functions(plan: Json) -> dict[str, float]:
    """The bytes of the paper's baseline by purpose: gradient maps are one dX and one dY of the largest sizes."""
    layers = plan["layers"]
    of = {
        "weights": sum(layer["weight_bytes"] for layer in layers),
        "feature maps": sum(one["bytes"] for one in plan["maps"]),
        "workspace": workspace(plan),
    }
    return of | {"gradient maps": plan["accounting"]["paper"]["baseline_bytes"] - sum(of.values())}


def working_set(plan: Json) -> tuple[str, float]:
    """The layer with the largest working set, and its share of the paper's baseline."""
    largest = max(plan["layers"], key=lambda layer: layer["working_set_bytes"])
    return largest["layer"], largest["working_set_bytes"] / plan["accounting"]["paper"]["baseline_bytes"]


def features(plan: Json) -> float:
    """The share of the paper's baseline that is not the classifier's weights and maps."""
    full = full_layers(plan)
    weights = sum(layer["weight_bytes"] for layer in plan["layers"] if layer["layer"] in full)
    maps = sum(one["bytes"] for one in plan["maps"] if one["layers"][0] in full)
    return 1 - (weights + maps) / plan["accounting"]["paper"]["baseline_bytes"]
