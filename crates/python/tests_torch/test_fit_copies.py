"""Copies that are late, and memory that is reused at once: what would show a missing wait."""

import pytest
import torch

from fit_models import NETWORKS
from fit_support import FAST, default_loss, fitted_copy, last_plan, same_bits, set_link, train
from tightfit._fit.doors import session_of


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("TIGHTFIT_QUIET", "1")
    torch.set_num_threads(1)
    set_link(monkeypatch, FAST)


class Late:
    """Side streams as slow as can be: a copy is done when it is waited for, and its target holds poison until then."""

    device = torch.device("cpu")

    def __init__(self):
        self.waited = self.started = 0
        self.skip = None

    def arena(self, size):
        return torch.full((size,), 0xA5, dtype=torch.uint8)

    def begin(self):
        pass

    def _later(self, source, target):
        self.started += 1
        target.fill_(0xA5)
        done = []

        def copy():
            if not done:
                done.append(True)
                target.copy_(source)

        return copy

    def out(self, device, host):
        return self._later(device, host)

    def into(self, host, device):
        return self._later(host, device)

    def wait(self, ticket):
        self.waited += 1
        if self.waited != self.skip:
            ticket()


@pytest.mark.parametrize("name", ["resnet", "densenet", "vit", "unet"])
def test_late_copies_change_no_bit(name):
    torch.manual_seed(1)
    make, inputs = NETWORKS[name]
    model, x = make().train(), inputs()
    copies = Late()
    fitted = fitted_copy(model, x, 0.4, copies)
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    assert copies.started > 0
    assert last_plan(fitted).counts.fetched > 0


def test_a_missing_wait_is_seen():
    """The test above can fail: leave one wait out."""
    torch.manual_seed(1)
    make, inputs = NETWORKS["resnet"]
    model, x = make().train(), inputs()
    copies = Late()
    fitted = fitted_copy(model, x, 0.4, copies)
    default_loss(fitted, x).backward()
    expected = [p.grad.clone() for p in fitted.parameters()]
    # The last wait of a step is for a copy into the device.
    copies.skip = 2 * copies.waited
    fitted.zero_grad()
    default_loss(fitted, x).backward()
    assert not all(torch.equal(p.grad, e) for p, e in zip(fitted.parameters(), expected, strict=True))


def test_every_copy_in_is_waited_for_even_if_the_graph_is_dropped():
    torch.manual_seed(1)
    make, inputs = NETWORKS["resnet"]
    model, x = make().train(), inputs()
    copies = Late()
    fitted = fitted_copy(model, x, 0.4, copies)

    def stop(gradient):
        raise KeyError

    loss = default_loss(fitted, x)
    handle = fitted[6].c1.weight.register_hook(stop)
    with pytest.raises(KeyError):
        loss.backward()
    handle.remove()
    del loss
    session = session_of(fitted)
    assert session._host_of() is None, "the pass is gone"
    fitted.load_state_dict(model.state_dict())
    assert same_bits(train(model, 1, x), train(fitted, 1, x))
