"""Times measured on the device instead of estimated, and where they are kept."""

import json
from types import SimpleNamespace

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import NETWORKS, Resnet, image
from fit_support import Current, last_plan, same_bits, sgd, tight_budget, train
from tightfit._budget.api import session_of
from tightfit._budget.eager import planner
from tightfit._budget.memory.copies import CpuCopies
from tightfit._budget.record import cost, measure, times

pytestmark = pytest.mark.usefixtures("measured")


def fitted_resnet(share=0.6):
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    budget = tight_budget(model, x, share)
    return tt.fit(model, budget, optimizer=sgd(model)), x


def test_a_plan_is_made_from_measured_times():
    model, x = fitted_resnet()
    before = torch.get_rng_state()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    plain = Resnet(blocks=3).train()
    plain.load_state_dict(state)
    torch.set_rng_state(before)
    expected = train(plain, 2, x)
    torch.set_rng_state(before)
    assert same_bits(expected, train(model, 2, x)), "measuring changes neither the model nor random states"
    step, known = last_plan(model).step, times.times_of(torch.device("cpu")).known
    convolutions = [o for o in step.data["operations"] if o["name"] == "aten.convolution"]
    found = {key: time for key, (time, _) in known.items() if key.startswith("aten.convolution.default")}
    assert len(convolutions) == 7 and len(found) == 2, "one of each form: the first, and those of the blocks"
    assert {o["time_us"] for o in convolutions} == set(found.values())
    machine = step.data["machine"]
    assert machine["to_host_bytes_per_s"] == times.times_of(torch.device("cpu")).rates["out"] > 0
    assert machine["both_bytes_per_s"] == times.times_of(torch.device("cpu")).rates["both"]


def test_another_process_measures_nothing_again(measured, monkeypatch):
    model, x = fitted_resnet()
    model(x).square().mean().backward()
    written = json.loads(measured.read_text())
    assert written["tightfit_step_times"] == 3 and len(written["devices"]) == 1
    # As in another process: what is in memory is gone.
    times._open.clear()
    timed = []
    monkeypatch.setattr(measure, "_time", lambda operation, *_: timed.append(operation) or (1.0, 0))
    again, x = fitted_resnet()
    again(x).square().mean().backward()
    first, second = last_plan(model).step.data["operations"], last_plan(again).step.data["operations"]
    assert timed == [] and [o["time_us"] for o in first] == [o["time_us"] for o in second]


def test_a_file_of_times_that_is_damaged_or_anothers_counts_as_none(measured):
    for content in ("", "{", "[]", '{"tightfit_step_times": 3, "devices": 3}', '{"tightfit_step_times": 99, "devices": {}}'):
        measured.write_text(content)
        times._open.clear()
        known = times.times_of(torch.device("cpu"))
        assert known.known == {} and known.rates == {}
    name = known.device
    measured.write_text(json.dumps({"tightfit_step_times": 3, "devices": {name: {"operations": {"a": "b"}}, "other": {"x": 1}}}))
    times._open.clear()
    known = times.times_of(torch.device("cpu"))
    assert known.known == {}
    known.known["f()"], known.blocks["f()"], known.blocks["g()"] = (2.0, 3), [3, 0, -1], [4]
    known.save()
    devices = json.loads(measured.read_text())["devices"]
    assert devices["other"] == {"x": 1}, "what others wrote stays"
    assert devices[name]["operations"]["f()"] == [2.0, 3]
    assert devices[name]["blocks"] == {"f()": [3, 0, -1]}, "none without a time"
    times._open.clear()
    assert times.times_of(torch.device("cpu")).blocks == {"f()": [3, 0, -1]}


def test_times_of_an_earlier_version_are_not_read(measured):
    name = times.times_of(torch.device("cpu")).device
    of_device = {"operations": {"f()": [1.0, 2]}, "rates": {}, "blocks": {}, "scales": {}, "workspaces": {}}
    for version, found in ((1, {}), (2, {}), (3, {"f()": (1.0, 2)})):
        measured.write_text(json.dumps({"tightfit_step_times": version, "devices": {name: of_device}}))
        times._open.clear()
        assert times.times_of(torch.device("cpu")).known == found


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        # A result, and what goes before it and behind it.
        ([("alloc", 1, 8), ("free_completed", 1, 8), ("alloc", 2, 4), ("alloc", 3, 8), ("free_completed", 3, 8)], [8, -1, 0, 8, -2]),
        # Two at once, the first of which goes first; what is asked for and given back at one place is another block.
        (
            [("alloc", 1, 8), ("alloc", 2, 4), ("free_requested", 1, 8), ("free_completed", 1, 8), ("alloc", 1, 2), ("free_completed", 2, 4)],
            [8, 4, -1, 0, -2],
        ),
        # Segments and blocks from before do not belong to the call.
        ([("segment_map", 1, 20), ("free_completed", 9, 8), ("alloc", 1, 8)], [0]),
        # Small blocks are left out.
        ([("alloc", 1, 1), ("free_completed", 1, 1)], []),
    ],
)
def test_what_a_call_takes_beside_its_results(calls, found):
    events = [{"action": action, "addr": place, "size": size << 20} for action, place, size in calls]
    assert measure.blocks_of(events) == [size << 20 if size > 0 else size for size in found]


def test_what_was_measured_of_workspaces_is_in_the_step(measured):
    x = image()
    model = Resnet()
    tt.fit(model, tight_budget(model, x, 0.6), optimizer=sgd(model))
    model(x).square().mean().backward()
    assert not any(operation["workspaces"] for operation in last_plan(model).step.data["operations"])
    known = times.times_of(torch.device("cpu"))
    key = next(key for key in known.known if key.startswith("aten.convolution.default"))
    known.blocks[key] = [1 << 20, 0, -1]
    tt.unfit(model)
    tt.fit(model, tight_budget(model, x, 0.6), optimizer=sgd(model))
    model(x).square().mean().backward()
    step = last_plan(model).step
    told = [times.key_of(recorded) for recorded, operation in zip(step.recorded, step.data["operations"], strict=True) if operation["workspaces"]]
    assert told and set(told) == {key}


def test_parts_of_a_gpu_have_times_of_their_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    names = set()
    for count in (132, 66):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, count=count: SimpleNamespace(multi_processor_count=count))
        names.add(times.times_of(torch.device("cuda", 0)).device)
    assert len(names) == 2


def test_limits_of_convolutions_have_times_of_their_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))

    def name(**variables):
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(f"TIGHTFIT_{variable}", value)
            return times.times_of(torch.device("cuda", 0)).device

    plain, auto = name(), name(CUDNN="libcudnn.so.9", WORKSPACE="auto", SIZES="fit")
    assert auto == f"{plain}, run, workspace auto, sizes fit"
    assert auto != name(CUDNN="libcudnn.so.9", WORKSPACE="64MiB", SIZES="fit")
    # Without the library, nothing limits.
    assert name(WORKSPACE="64MiB") == plain


def test_clocks_run_on_the_gpu_of_the_model(monkeypatch):
    seen = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            seen.append(Current.now)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 1.0

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: seen.append(Current.now))
    measure._clock(torch.device("cuda", 1)).seconds(lambda: seen.append(Current.now))
    assert seen == [1, 1, 1, 1] and Current.now == 0


def test_a_model_on_another_gpu_is_prepared_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", Current)
    model = tt.fit(Resnet(blocks=3).train(), "1GiB")
    found = session_of(model)
    seen = []

    def prepare(*_, **__):
        seen.append(Current.now)
        found.plans.clear()

    monkeypatch.setattr(found, "device", lambda module: torch.device("cuda", 1))
    monkeypatch.setattr(found, "prepare", prepare)
    model(image(4))
    assert seen == [1] and Current.now == 0


def test_no_cache_no_file(measured, monkeypatch):
    monkeypatch.setenv("TIGHTFIT_CACHE", "none")
    times._open.clear()
    model, x = fitted_resnet()
    model(x).square().mean().backward()
    assert times.times_of(torch.device("cpu")).known
    assert not measured.exists()


def test_what_fits_is_not_measured(measured):
    model = tt.fit(Resnet(blocks=3).train(), "1GiB")
    model(image(4)).square().mean().backward()
    assert session_of(model).last.schedule is None
    assert not measured.exists() and times.times_of(torch.device("cpu")).known == {}


def test_measured_workspaces_count(monkeypatch):
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    plain = tt.plan(model, x, optimizer=sgd(model))
    # As on a GPU, where this is set aside until workspaces are measured.
    monkeypatch.setattr(planner, "reserve_of", lambda budget, device: 8 << 20)
    monkeypatch.setattr(measure, "_time", lambda operation, *_: (10.0, 3 << 20 if operation.name == "convolution_backward" else 0))
    tt.fit(model, plain.peak, optimizer=sgd(model))
    with pytest.raises(
        tightfit.DoesNotFit, match=r"at convolution_backward in .*, of which 3\.00 MiB are workspace; .* or limit workspaces \(`tightfit run"
    ) as refused:
        model(x)
    assert 3 << 20 < refused.value.needed_bytes <= plain.peak + (3 << 20)
    tt.unfit(model)
    # Without any workspace, this would not fit either.
    tt.fit(model, refused.value.needed_bytes - (3 << 20) - 4096, optimizer=sgd(model))
    with pytest.raises(tightfit.DoesNotFit, match="Memory peaks .* convolution_backward .*smaller batch$"):
        model(x)
    tt.unfit(model)
    tt.fit(model, plain.peak + (3 << 20), optimizer=sgd(model))
    model(x).square().mean().backward()
    assert session_of(model).last.schedule is None, "with its workspaces, everything fits"


def test_a_reserve_that_was_guessed_ends_where_workspaces_are_measured(monkeypatch):
    """A step that fits easily is planned without measuring."""
    monkeypatch.setattr(planner, "reserve_of", lambda budget, device: 64 << 10)
    torch.manual_seed(1)
    model = Resnet(blocks=3).train()
    tt.fit(model, tt.plan(model, image(4), optimizer=sgd(model)).peak, optimizer=sgd(model))
    reserves = []
    for x in (image(1), image(4)):
        model.zero_grad()
        model(x).square().mean().backward()
        reserves.append(session_of(model).last.assumed.reserve)
    assert reserves == [64 << 10, 0]


def test_workspaces_that_could_not_be_measured_are_as_large_for_their_size_as_others(measured, monkeypatch):
    """The workspaces of the largest operations, which find too little memory free."""
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    plain = tt.plan(model, x, optimizer=sgd(model))
    monkeypatch.setattr(planner, "reserve_of", lambda budget, device: 8 << 20)

    def time(operation, *_):
        if operation.name == "convolution" and operation.arguments[0].shape[1] != 3:
            raise RuntimeError("out of memory")
        return 10.0, 1000 if operation.name == "convolution" else 0

    monkeypatch.setattr(measure, "_time", time)
    tt.fit(model, plain.peak, optimizer=sgd(model))
    model(x).square().mean().backward()
    step = session_of(model).last.step
    found = [(o["workspace_bytes"], cost.bytes_of_call(r)) for o, r in zip(step.data["operations"], step.recorded, strict=True) if o["name"] == "aten.convolution"]
    share = 1000 / found[0][1]
    assert found[0][0] == 1000 and all(workspace == int(share * size) > 0 for workspace, size in found[1:])
    assert "workspaces of convolution that were not measured are as large for their size as others" in step.assumed
    # The next process knows it too.
    assert json.loads(measured.read_text())["devices"][times.times_of(torch.device("cpu")).device]["workspaces"] == {"convolution": share}


def test_of_convolutions_that_find_too_little_memory_a_part_of_the_mini_batch_is_measured(monkeypatch):
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(7)
    tried = []

    def time(operation, *_):
        if not operation.name.startswith("convolution"):
            return 10.0, 0
        samples = operation.arguments[0].shape[0]
        assert operation.name == "convolution" or operation.arguments[1].shape[0] == samples
        tried.append(samples)
        if samples > 3:
            raise torch.OutOfMemoryError("too large")
        return 3.0, 30

    monkeypatch.setattr(measure, "_time", time)
    tt.fit(model, tight_budget(model, x, 0.7), optimizer=sgd(model))
    model(x).square().mean().backward()
    assert set(tried) == {7, 3}
    operations = [o for o in last_plan(model).step.data["operations"] if o["name"].startswith("aten.convolution")]
    assert {o["time_us"] for o in operations} == {7.0}
    assert all(70 <= o["workspace_bytes"] < 70 + 512 for o in operations)


def test_a_plan_leaves_room_for_gaps_only_where_it_gives_something_up(monkeypatch):
    monkeypatch.setattr(planner, "slack_of", lambda budget, device: budget // 10)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    peak = tt.plan(model, x, optimizer=sgd(model)).peak
    for budget, moves in ((peak, False), (peak - 1, True)):
        tt.fit(model, budget, optimizer=sgd(model))
        model(x).square().mean().backward()
        fitted = session_of(model).last
        assert (fitted.schedule is not None) == moves
        assert not moves or fitted.peak <= budget - budget // 10
        tt.unfit(model)
        model.zero_grad()


@pytest.mark.parametrize("name", NETWORKS)
def test_most_of_the_time_of_each_network_can_be_measured(name):
    torch.manual_seed(1)
    make, inputs = NETWORKS[name]
    model, x = make().train(), inputs()
    tt.fit(model, tight_budget(model, x, 0.7), optimizer=sgd(model))
    model(x).float().square().mean().backward()
    known = times.times_of(torch.device("cpu")).known
    operations = last_plan(model).step
    timed, all_of_them = 0.0, 0.0
    for operation, recorded in zip(operations.data["operations"], operations.recorded, strict=True):
        all_of_them += operation["time_us"]
        if recorded is not None and times.key_of(recorded) in known:
            timed += operation["time_us"]
    assert timed > 0.7 * all_of_them


def test_copies_are_measured_each_way_and_both_at_once():
    known = times.times_of(torch.device("cpu"))
    measure.measure_copies(CpuCopies(), known, 16 << 20)
    assert set(known.rates) == {"out", "in", "both"} and min(known.rates.values()) > 0
    too_little = times.Times("another", None)
    measure.measure_copies(CpuCopies(), too_little, 1 << 17)
    assert too_little.rates == {}
