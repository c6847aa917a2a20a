"""Corrected versions of optimizers that MXNet 1.9.1 computes wrongly.

Reasons: docs/decisions/0028-mxnet-numerical-errors.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Union

from mxtrain.engine.backend import mx, nd

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


class DelayCompensatedSGD(mx.optimizer.DCASGD):
    """DCASGD with working momentum. MXNet's version evaluates `if mom:` on an array, which raises.

    Source: Zheng et al., https://arxiv.org/abs/1609.08326, equation 10.
    """

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        grad = scaled(self, grad)
        momentum, previous_weight = state
        change = -lr * (grad + wd * weight + self.lamda * grad * grad * (weight - previous_weight))
        if momentum is not None:
            momentum[:] = momentum * self.momentum + change
            change = momentum
        previous_weight[:] = weight  # before the update: the next step compensates for the change of this one
        weight[:] += change


class NAGOptimizer(mx.optimizer.NAG):
    """NAG whose weight decay always uses the weights before the step.

    MXNet's operator writes the weight in place and then reads it again for the momentum. If oneDNN keeps the weight in
    a private layout after inference, that read returns the old values, so results differ between processes. Writing to
    a separate array avoids this.

    Source: Sutskever et al., On the importance of initialization and momentum in deep learning, 2013, equations 3, 4.
    """

    def _update_impl(
        self, index: int, weight: NDArray, grad: NDArray, state: Any, multi_precision: bool = False
    ) -> Any:
        if state is None or multi_precision:
            return super()._update_impl(index, weight, grad, state, multi_precision)
        self._update_count(index)
        clip = {} if self.clip_gradient is None else {"clip_gradient": self.clip_gradient}
        updated = nd.nag_mom_update(
            weight,
            grad,
            state,
            lr=self._get_lr(index),
            wd=self._get_wd(index),
            momentum=self.momentum,
            rescale_grad=self.rescale_grad,
            **clip,
        )
        # The copy keeps the parameter's array, which replicas and checkpoints refer to.
        updated.copyto(weight)


class AdamaxOptimizer(mx.optimizer.Adamax):
    """Adamax with an epsilon in the denominator. MXNet's version computes 0 / 0 for a gradient of exactly 0.

    Source: Kingma and Ba, https://arxiv.org/abs/1412.6980, algorithm 2, with an epsilon as in Adam.
    """

    epsilon = 1e-8

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        self._update_count(index)
        step = self._index_update_count[index]
        lr, wd = self._get_lr(index) / (1.0 - self.beta1**step), self._get_wd(index)
        grad = scaled(self, grad) + wd * weight
        mean, largest = state
        mean[:] = self.beta1 * mean + (1 - self.beta1) * grad
        largest[:] = nd.maximum(self.beta2 * largest, nd.abs(grad))
        # An element whose gradient has always been 0 has largest = 0, as rows of an embedding table often do.
        weight[:] -= lr * mean / (largest + self.epsilon)


class NadamOptimizer(mx.optimizer.Nadam):
    """Nadam whose momentum schedule advances once per step. MXNet's version advances it once per parameter.

    Source: Dozat, Incorporating Nesterov Momentum into Adam, 2016, algorithm 8.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._schedule: List[float] = [1.0]
        del self.m_schedule  # a function of the step here, so no state

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        step = self._index_update_count[index]
        grad = scaled(self, grad) + wd * weight
        mean, variance = state
        mean[:] = self.beta1 * mean + (1 - self.beta1) * grad
        variance[:] = self.beta2 * variance + (1 - self.beta2) * grad * grad
        mean_hat = mean / (1 - self._product(step + 1))
        grad_hat = grad / (1 - self._product(step))
        variance_hat = variance / (1 - self.beta2**step)
        direction = (1 - self._momentum(step)) * grad_hat + self._momentum(step + 1) * mean_hat
        weight[:] -= lr * direction / (nd.sqrt(variance_hat) + self.epsilon)

    def _momentum(self, step: int) -> float:
        return self.beta1 * (1.0 - 0.5 * 0.96 ** (step * self.schedule_decay))

    def _product(self, step: int) -> float:
        """Returns the product of the momenta of the first `step` steps."""
        while len(self._schedule) <= step:
            self._schedule.append(self._schedule[-1] * self._momentum(len(self._schedule)))
        return self._schedule[step]


class SignumOptimizer(mx.optimizer.Signum):
    """Signum that treats weight decay without momentum as it does with momentum.

    Without momentum, MXNet's version excludes weight decay from the sign and ignores the decoupled decay `wd_lh`.

    Source: Bernstein et al., https://arxiv.org/abs/1802.04434, algorithm 1.
    """

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> Any:
        if state is not None:
            return super().update(index, weight, grad, state)
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        grad = scaled(self, grad) + wd * weight
        weight[:] = (1 - lr * self.wd_lh) * weight - lr * nd.sign(grad)


class LARSOptimizer(mx.optimizer.LARS):
    """LARS with momentum correction for all parameters.

    MXNet's version stores the last rate once per fused group of arrays, so all groups but the first see no change.

    Source: You et al., https://arxiv.org/abs/1708.03888; the correction is Goyal et al., https://arxiv.org/abs/1706.02677,
    section 3.
    """

    def _update_count(self, index: Union[int, List[int]]) -> None:
        before = self.num_update
        super()._update_count(index)
        if self.num_update > before:  # only the first fused group of a step raises the count
            self.last_lr = self.lr if self.cur_lr is None else self.cur_lr  # type: ignore[has-type]
            self.cur_lr = self.lr

    def _get_lrs(self, indices: List[int]) -> List[float]:
        # MXNet's LARS overwrites the last rate here, which `_update_count` keeps now.
        return mx.optimizer.Optimizer._get_lrs(self, indices)


class LBSGDOptimizer(mx.optimizer.LBSGD):
    """LBSGD that copies the first gradient of an accumulation. MXNet's version keeps a reference to the gradient array,
    which the next step overwrites."""

    def _cumulate_gradient(self, grad: NDArray, index: int) -> Any:
        gathered = super()._cumulate_gradient(grad, index)
        if gathered["cum_grad"] is grad and self.batch_scale > 1:
            gathered["cum_grad"] = grad.copy()
        return gathered


def scaled(optimizer: Any, grad: NDArray) -> Any:
    """Returns the gradient, rescaled and clipped by the optimizer's `rescale_grad` and `clip_gradient`."""
    grad = grad * optimizer.rescale_grad
    if optimizer.clip_gradient is not None:
        grad = nd.clip(grad, -optimizer.clip_gradient, optimizer.clip_gradient)
    return grad
