"""Descriptions of all optimizers that MXNet 1.9.1 registers.

Its deprecated alias `ccsgd` of sgd and its test double `test` are omitted.
`mxnet_names` maps fields to the arguments of MXNet's class; `workaround_class` names a corrected class in
`mxtrain.optimizer.mxnet_workarounds`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Literal, Optional

from mxtrain.optimizer.spec import Optimizer, RowwiseOptimizer
from mxtrain.types import NonNegative, NonNegativeFloat, OpenFraction, Positive, PositiveFloat

if TYPE_CHECKING:
    import mxnet as mx


class SGD(RowwiseOptimizer):
    """Stochastic gradient descent with momentum."""

    momentum: OpenFraction = 0.9
    """Momentum; 0 is none."""
    mxnet_name: ClassVar[str] = "sgd"
    lr_scaling: ClassVar[Optional[str]] = "linear"

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        from mxtrain.optimizer.sgd import SGDOptimizer

        return SGDOptimizer(**self.arguments(steps_per_epoch))


class NAG(RowwiseOptimizer):
    """Nesterov's accelerated gradient."""

    momentum: OpenFraction = 0.9
    """Momentum; 0 is none."""
    mxnet_name: ClassVar[str] = "nag"
    lr_scaling: ClassVar[Optional[str]] = "linear"
    workaround_class: ClassVar[str] = "NAGOptimizer"


class Adam(RowwiseOptimizer):
    """Adam. Source: Kingma and Ba, https://arxiv.org/abs/1412.6980."""

    lr: PositiveFloat = 0.001
    beta1: OpenFraction = 0.9
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Small number added to divisors, for numerical stability."""
    mxnet_name: ClassVar[str] = "adam"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        from mxtrain.optimizer.adam import AdamOptimizer

        return AdamOptimizer(**self.arguments(steps_per_epoch))


class AdamW(RowwiseOptimizer):
    """Adam with decoupled weight decay.

    Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2. The learning rate replaces the paper's
    schedule multiplier, as in the published BERT.
    """

    lr: PositiveFloat = 0.0005
    wd: NonNegativeFloat = 0.01
    """Decoupled weight decay: each step subtracts lr * wd times the weight."""
    beta1: OpenFraction = 0.9
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Small number added to divisors, for numerical stability."""
    bias_correction: bool = True
    """Correct the moments' bias towards 0; the published BERT and GluonNLP's BERTAdam do not."""
    lr_scaling: ClassVar[Optional[str]] = "sqrt"

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        from mxtrain.optimizer.adam import AdamWOptimizer

        return AdamWOptimizer(**self.arguments(steps_per_epoch))


class Adamax(RowwiseOptimizer):
    """Adam with the infinity norm. Source: https://arxiv.org/abs/1412.6980, section 7."""

    lr: PositiveFloat = 0.002
    beta1: OpenFraction = 0.9
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    mxnet_name: ClassVar[str] = "adamax"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    workaround_class: ClassVar[str] = "AdamaxOptimizer"


class Nadam(RowwiseOptimizer):
    """Adam with Nesterov momentum. Source: Dozat 2016."""

    lr: PositiveFloat = 0.001
    beta1: OpenFraction = 0.9
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Small number added to divisors, for numerical stability."""
    schedule_decay: NonNegativeFloat = 0.004
    """Speed of the momentum's warm-up."""
    mxnet_name: ClassVar[str] = "nadam"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    workaround_class: ClassVar[str] = "NadamOptimizer"


class AdaGrad(RowwiseOptimizer):
    """AdaGrad with decoupled weight decay: the decay does not enter the sum of squared gradients.

    Source: Duchi et al. 2011.
    """

    lr: PositiveFloat = 0.01
    epsilon: PositiveFloat = 1e-7
    """Small number added to divisors, for numerical stability."""
    mxnet_name: ClassVar[str] = "adagrad"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    mxnet_names: ClassVar[Dict[str, str]] = {"lr": "learning_rate", "epsilon": "eps"}


class GroupAdaGrad(RowwiseOptimizer):
    """AdaGrad with one accumulated square per row. Supports only matrices, and no weight decay."""

    lr: PositiveFloat = 0.01
    wd: Literal[0.0] = 0.0  # type: ignore[valid-type]  # pydantic takes it, and says which value is allowed
    epsilon: PositiveFloat = 1e-5
    """Small number added to divisors, for numerical stability."""
    mxnet_name: ClassVar[str] = "groupadagrad"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    mxnet_names: ClassVar[Dict[str, str]] = {"lr": "learning_rate", "epsilon": "eps"}


class AdaDelta(RowwiseOptimizer):
    """AdaDelta. Source: https://arxiv.org/abs/1212.5701.

    MXNet's update uses no learning rate, not even for weight decay, so `lr` has no effect unless it is 0.
    """

    lr: PositiveFloat = 1.0
    """Has no effect, like schedules and lr_mult, except that parameters with a rate of 0 are not updated."""
    rho: OpenFraction = 0.9
    """Decay of the squared averages."""
    epsilon: PositiveFloat = 1e-5
    """Small number added to divisors, for numerical stability."""
    mxnet_name: ClassVar[str] = "adadelta"


class RMSProp(RowwiseOptimizer):
    """RMSProp; `centered` is Graves' variant, https://arxiv.org/abs/1308.0850."""

    lr: PositiveFloat = 0.001
    gamma1: OpenFraction = 0.9
    """Decay of the squared gradients."""
    gamma2: OpenFraction = 0.9
    """Momentum; used only if `centered` is true."""
    epsilon: PositiveFloat = 1e-8
    """Added to the mean square, below the root."""
    centered: bool = False
    """Subtract the mean (Graves)."""
    clip_weights: Optional[PositiveFloat] = None
    """Clip weights to +-this; null is off."""
    mxnet_name: ClassVar[str] = "rmsprop"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"


class Ftrl(RowwiseOptimizer):
    """Follow the regularised leader. Source: McMahan et al. 2013."""

    lr: PositiveFloat = 0.1
    lamda1: NonNegativeFloat = 0.01
    """L1 regularisation."""
    beta: PositiveFloat = 1.0
    """Offset of the learning rate of each coordinate."""
    mxnet_name: ClassVar[str] = "ftrl"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"


class FTML(RowwiseOptimizer):
    """Follow the moving leader. Source: Zheng and Kwok 2017."""

    lr: PositiveFloat = 0.0025
    beta1: OpenFraction = 0.6
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Small number added to divisors, for numerical stability."""
    mxnet_name: ClassVar[str] = "ftml"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"


class Signum(RowwiseOptimizer):
    """SGD with the sign of the momentum. Source: https://arxiv.org/abs/1802.04434."""

    lr: PositiveFloat = 0.01
    momentum: OpenFraction = 0.9
    """Momentum; 0 is none."""
    wd_lh: NonNegativeFloat = 0.0
    """Decoupled weight decay: each step subtracts lr * wd_lh times the weight."""
    mxnet_name: ClassVar[str] = "signum"
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    workaround_class: ClassVar[str] = "SignumOptimizer"


class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics: SGD plus Gaussian noise. Source: Welling and Teh 2011."""

    lr: PositiveFloat = 0.001
    mxnet_name: ClassVar[str] = "sgld"
    dense_reason: ClassVar[str] = "draws noise for all rows of a table"
    draws_random: ClassVar[bool] = True


class DCASGD(RowwiseOptimizer):
    """Delay-compensated asynchronous SGD. Source: https://arxiv.org/abs/1609.08326.

    MXNet always compensates for a delay of one update, even if gradients have no delay.
    """

    lr: PositiveFloat = 0.01
    momentum: OpenFraction = 0.0
    """Momentum; 0 is none."""
    lamda: NonNegativeFloat = 0.04
    """Strength of the delay compensation; 0 is SGD."""
    mxnet_name: ClassVar[str] = "dcasgd"
    lr_scaling: ClassVar[Optional[str]] = "linear"
    workaround_class: ClassVar[str] = "DelayCompensatedSGD"


class LAMB(Optimizer):
    """Layer-wise adaptive moments for large batches. Source: https://arxiv.org/abs/1904.00962."""

    lr: PositiveFloat = 0.001
    beta1: OpenFraction = 0.9
    """Decay of the first moment."""
    beta2: OpenFraction = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Small number added to divisors, for numerical stability."""
    lower_bound: Optional[PositiveFloat] = None
    """Lower bound on the norm of the weights in the trust ratio; null = none."""
    upper_bound: Optional[PositiveFloat] = None
    """Upper bound on the norm of the weights in the trust ratio; null = none."""
    bias_correction: bool = True
    """Correct the moments' bias towards 0."""
    mxnet_name: ClassVar[str] = "lamb"
    dense_reason: ClassVar[str] = "looks at the norm of a whole table"
    shardable: ClassVar[bool] = True
    lr_scaling: ClassVar[Optional[str]] = "sqrt"


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling. Source: https://arxiv.org/abs/1708.03888.

    Parameters named bias, gamma or beta use the unscaled learning rate, as in MXNet.
    """

    momentum: OpenFraction = 0.9
    """Momentum; 0 is none."""
    eta: PositiveFloat = 0.001
    """Trust coefficient."""
    epsilon: NonNegativeFloat = 0.0
    """Small number added to divisors, for numerical stability."""
    momentum_correction: bool = True
    """Rescale the momentum of all parameters when the learning rate changes."""
    mxnet_name: ClassVar[str] = "lars"
    dense_reason: ClassVar[str] = "looks at the norm of a whole table"
    shardable: ClassVar[bool] = True
    lr_scaling: ClassVar[Optional[str]] = "sqrt"
    workaround_class: ClassVar[str] = "LARSOptimizer"
    mxnet_names: ClassVar[Dict[str, str]] = {"lr": "learning_rate", "epsilon": "eps"}


class LBSGD(Optimizer):
    """Large-batch SGD with warm-up. Every `batch_scale` steps, their mean gradient makes one update.

    The warm-up raises the learning rate to `batch_scale` times the given one.
    """

    momentum: OpenFraction = 0.9
    """Momentum; 0 is none."""
    warmup_strategy: Literal["linear", "power2", "sqrt", "lars"] = "linear"
    """Warm-up of the learning rate; lars = no warm-up, but a learning rate of its own for each tensor."""
    warmup_epochs: NonNegative = 5
    """Length of the warm-up in epochs; not used with lars."""
    batch_scale: Positive = 1
    """Steps whose mean gradient makes one update."""
    mxnet_name: ClassVar[str] = "lbsgd"
    dense_reason: ClassVar[str] = "gathers the gradients of several steps"
    lr_scaling: ClassVar[Optional[str]] = "linear"
    workaround_class: ClassVar[str] = "LBSGDOptimizer"

    def arguments(self, steps_per_epoch: int) -> Dict[str, Any]:
        return {**super().arguments(steps_per_epoch), "updates_per_epoch": steps_per_epoch}
