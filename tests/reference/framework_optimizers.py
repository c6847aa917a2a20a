"""Initial weights, optimizers and schedules of MXNet and PyTorch."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
from framework_lines import INITIALISERS, OPTIMIZERS, Line, values

from mxtrain.engine.backend import gluon, mx, nd

# Initial weights: the standard deviation and the largest value of many of them.

SHAPE = (500, 300)
"""A dense layer of 300 inputs and 500 units."""


def drawn(initialiser: Any, name: str = "weight") -> np.ndarray:
    """Returns weights of an initialiser of MXNet."""
    mx.random.seed(0)
    weight = nd.zeros(SHAPE)
    mx.init.create(initialiser)(mx.init.InitDesc(name), weight)
    return weight.asnumpy()


def statistics(weight: Any) -> List[float]:
    weight = np.asarray(weight)
    return [float(weight.std()), float(np.abs(weight).max())]


def torch_weight(torch: Any, fill: Callable[[Any], Any]) -> Any:
    torch.manual_seed(0)
    weight = torch.empty(SHAPE)
    fill(weight)
    return weight


class DefaultWeights(Line):
    group = INITIALISERS
    title = "Dense layer: default"
    in_mxnet = "uniform in +-0.07, biases 0"
    in_pytorch = "uniform in +-1 / sqrt(inputs), biases, too"
    mxtrain = "said: `model.init` chooses, Xavier's by default"
    rounding, relative = 0.01, True

    def mxnet(self) -> Any:
        layer = gluon.nn.Dense(SHAPE[0], in_units=SHAPE[1])
        mx.random.seed(0)
        layer.initialize()
        return [*statistics(layer.weight.data().asnumpy()), abs(layer.bias.data().asnumpy()).max()]

    def numpy(self) -> Any:
        return [0.07 / math.sqrt(3), 0.07, 0]

    def pytorch(self, torch: Any) -> Any:
        torch.manual_seed(0)
        layer = torch.nn.Linear(SHAPE[1], SHAPE[0])
        return [*statistics(layer.weight.detach()), layer.bias.abs().max()]

    def converted(self, torch: Any) -> Any:
        return [*statistics(torch_weight(torch, lambda w: torch.nn.init.uniform_(w, -0.07, 0.07))), 0]


class EmbeddingWeights(Line):
    group = INITIALISERS
    title = "Embedding: default"
    in_mxnet = "uniform in +-0.07"
    in_pytorch = "normal, standard deviation 1"
    mxtrain = "said: `model.init` chooses, Xavier's by default"
    rounding, relative = 0.01, True

    def mxnet(self) -> Any:
        layer = gluon.nn.Embedding(*SHAPE)
        mx.random.seed(0)
        layer.initialize()
        return layer.weight.data().asnumpy().std()

    def numpy(self) -> Any:
        return 0.07 / math.sqrt(3)

    def pytorch(self, torch: Any) -> Any:
        torch.manual_seed(0)
        return torch.nn.Embedding(*SHAPE).weight.std()

    def converted(self, torch: Any) -> Any:
        return torch_weight(torch, lambda w: torch.nn.init.uniform_(w, -0.07, 0.07)).std()


class XavierWeights(Line):
    group = INITIALISERS
    title = "Xavier"
    in_mxnet = "`Xavier()`: uniform, magnitude 3, mean of inputs and outputs"
    in_pytorch = "`xavier_uniform_`: gain 1: the same bound, sqrt(6 / (inputs + outputs))"
    mxtrain = "same"
    rounding, relative = 0.01, True

    def mxnet(self) -> Any:
        return statistics(drawn("xavier"))

    def numpy(self) -> Any:
        bound = math.sqrt(6 / sum(SHAPE))
        return [bound / math.sqrt(3), bound]

    def pytorch(self, torch: Any) -> Any:
        return statistics(torch_weight(torch, torch.nn.init.xavier_uniform_))


class KaimingWeights(Line):
    group = INITIALISERS
    title = "Kaiming"
    in_mxnet = "`MSRAPrelu()`: slope 0.25, mean of inputs and outputs"
    in_pytorch = "`kaiming_normal_`: slope 0, inputs"
    mxtrain = 'said: `MSRAPrelu("in", 0)` is PyTorch\'s'
    rounding, relative = 0.01, True

    def mxnet(self) -> Any:
        return drawn("msraprelu").std()

    def numpy(self) -> Any:
        return math.sqrt(2 / (1 + 0.25**2) / np.mean(SHAPE))

    def pytorch(self, torch: Any) -> Any:
        return torch_weight(torch, torch.nn.init.kaiming_normal_).std()

    def converted(self, torch: Any) -> Any:
        weight = torch_weight(torch, lambda w: torch.nn.init.kaiming_normal_(w, a=0.25, nonlinearity="leaky_relu"))
        return weight.std() * math.sqrt(SHAPE[1] / np.mean(SHAPE))


class OrthogonalWeights(Line):
    group = INITIALISERS
    title = "Orthogonal: scale"
    in_mxnet = "1.414"
    in_pytorch = "`gain`: 1"
    mxtrain = "said: `torch.nn.init.orthogonal_(weight, 1.414)`"

    def mxnet(self) -> Any:
        return np.linalg.svd(drawn("orthogonal"), compute_uv=False)

    def numpy(self) -> Any:
        return np.full(min(SHAPE), 1.414)

    def pytorch(self, torch: Any) -> Any:
        return torch.linalg.svdvals(torch_weight(torch, torch.nn.init.orthogonal_))

    def converted(self, torch: Any) -> Any:
        return torch.linalg.svdvals(torch_weight(torch, lambda w: torch.nn.init.orthogonal_(w, 1.414)))


# Optimizers: weights after each step, of given gradients.

WEIGHT = np.array([1, -2, 0.5, 3], np.float32)
RATES = (0.1, 0.1, 0.01, 0.01)
"""The rate drops after two steps."""
CONSTANT = (0.1,) * 4
GRADIENTS = [values(4, seed=step) for step in range(4)]
SMALL = [gradient * np.float32(1e-6) for gradient in GRADIENTS]
Step = Callable[[Any, int], None]


def steps_of_mxnet(optimizer: Any, gradients: Sequence[np.ndarray], rates: Sequence[float] = CONSTANT) -> List[Any]:
    """Returns the weights after each step."""
    weight, found = nd.array(WEIGHT), []
    state = optimizer.create_state_multi_precision(0, weight)
    for gradient, rate in zip(gradients, rates):
        optimizer.set_learning_rate(rate)
        if optimizer.aggregate_num:
            optimizer.update_multi_precision([0], [weight], [nd.array(gradient)], [state])
        else:
            optimizer.update_multi_precision(0, weight, nd.array(gradient), state)
        found.append(weight.asnumpy())
    return found


def steps_of_torch(
    torch: Any,
    build: Callable[..., Any],
    gradients: Sequence[np.ndarray],
    rates: Sequence[float] = CONSTANT,
    before: Optional[Step] = None,
    **options: Any,
) -> List[Any]:
    """Returns the weights after each step; `before` gets the optimizer and the number of the step, from 1."""
    weight, found = torch.nn.Parameter(torch.tensor(WEIGHT)), []
    optimizer = build([weight], lr=rates[0], **options)
    for number, (gradient, rate) in enumerate(zip(gradients, rates), 1):
        weight.grad = torch.tensor(gradient)
        if before:
            before(optimizer, number)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        found.append(weight.detach().numpy().copy())
    return found


def steps_of_numpy(
    update: Callable[..., np.ndarray], gradients: Sequence[np.ndarray], rates: Sequence[float] = CONSTANT
) -> List[np.ndarray]:
    """Returns the weights after each step of update(state, weight, gradient, rate, number of the step)."""
    weight, state, found = WEIGHT.astype(np.float64), {}, []  # type: ignore[var-annotated]
    for number, (gradient, rate) in enumerate(zip(gradients, rates), 1):
        weight = update(state, weight, gradient.astype(np.float64), rate, number)
        found.append(weight)
    return found


def rescale_momentum(rates: Sequence[float]) -> Step:
    """Gives PyTorch's momentum the rate that MXNet's has kept from the steps before."""

    def before(optimizer: Any, number: int) -> None:
        for state in optimizer.state.values():
            state["momentum_buffer"] *= rates[number - 2] / rates[number - 1]

    return before


def correct_epsilon(epsilon: float, beta: float = 0.999) -> Step:
    """Gives PyTorch's Adam the epsilon of each step that is MXNet's, which is added before the correction of bias."""

    def before(optimizer: Any, number: int) -> None:
        optimizer.param_groups[0]["eps"] = epsilon / math.sqrt(1 - beta**number)

    return before


class ConstantMomentum(Line):
    group = OPTIMIZERS
    title = "SGD with momentum and decay, constant rate"
    in_mxnet = in_pytorch = "decay is added to the gradient"
    mxtrain = "same"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.SGD(momentum=0.9, wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) - rate * (g + 0.1 * w)
            return w + state["m"]

        return steps_of_numpy(update, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, momentum=0.9, weight_decay=0.1)


class FallingMomentum(Line):
    group = OPTIMIZERS
    title = "SGD with momentum: after a drop of the rate"
    in_mxnet = "the momentum holds the rate: earlier steps go on at the old one"
    in_pytorch = "the momentum holds gradients: the new rate counts for all"
    mxtrain = "said: `optimizer=sgd` is MXNet's, so curves differ after each drop"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.SGD(momentum=0.9), GRADIENTS, RATES)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) - rate * g
            return w + state["m"]

        return steps_of_numpy(update, GRADIENTS, RATES)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, RATES, momentum=0.9)

    def converted(self, torch: Any) -> Any:
        before = rescale_momentum(RATES)
        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, RATES, before, momentum=0.9)


class FallingNesterov(Line):
    group = OPTIMIZERS
    title = "NAG: after a drop of the rate"
    in_mxnet = "as SGD; the same at a constant rate"
    in_pytorch = "`SGD(nesterov=True)`"
    mxtrain = "said: `optimizer=nag` is MXNet's"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.NAG(momentum=0.9), GRADIENTS, RATES)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) - rate * g
            return w + 0.9 * state["m"] - rate * g

        return steps_of_numpy(update, GRADIENTS, RATES)

    def _steps(self, torch: Any, before: Optional[Step]) -> Any:
        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, RATES, before, momentum=0.9, nesterov=True)

    def pytorch(self, torch: Any) -> Any:
        return self._steps(torch, None)

    def converted(self, torch: Any) -> Any:
        return self._steps(torch, rescale_momentum(RATES))


def adam(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    correction = math.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    return w - rate * correction * state["m"] / (np.sqrt(state["v"]) + 1e-8)


class Adam(Line):
    group = OPTIMIZERS
    title = "Adam: eps, gradients of 1e-6"
    in_mxnet = "added before the correction of bias: 32 times as large in the first step"
    in_pytorch = "added after it"
    mxtrain = "said: `optimizer=adam` is MXNet's; the difference falls as gradients grow"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.Adam(), SMALL)

    def numpy(self) -> Any:
        return steps_of_numpy(adam, SMALL)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adam, SMALL)

    def converted(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adam, SMALL, before=correct_epsilon(1e-8))


class AdamDecay(Line):
    group = OPTIMIZERS
    title = "Adam: decay"
    in_mxnet = in_pytorch = "added to the gradient, before the moments"
    mxtrain = "same"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.Adam(wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        return steps_of_numpy(lambda state, w, g, *rest: adam(state, w, g + 0.1 * w, *rest), GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adam, GRADIENTS, weight_decay=0.1)


class AdamW(Line):
    group = OPTIMIZERS
    title = "AdamW: decay"
    in_mxnet = "operator `adamw_update` alone; mxtrain's `adamw`: rate x decay x weight"
    in_pytorch = "rate x decay x weight; eps 1e-8 in place of 1e-6"
    mxtrain = "same; eps as for Adam"

    def mxnet(self) -> Any:
        from mxtrain.optimizer.adam import AdamWOptimizer

        return steps_of_mxnet(AdamWOptimizer(wd=0.1, epsilon=1e-8), GRADIENTS)

    def numpy(self) -> Any:
        return steps_of_numpy(lambda state, w, g, rate, t: adam(state, w, g, rate, t) - rate * 0.1 * w, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.AdamW, GRADIENTS, weight_decay=0.1)


class RmsProp(Line):
    group = OPTIMIZERS
    title = "RMSProp: eps, gradients of 1e-6"
    in_mxnet = "below the root; `gamma1` 0.9"
    in_pytorch = "outside of it; `alpha` 0.99"
    mxtrain = "said: `optimizer=rmsprop` is MXNet's; no setting of PyTorch's gives it"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.RMSProp(), SMALL)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["n"] = 0.9 * state.get("n", 0) + 0.1 * g * g
            return w - rate * g / np.sqrt(state["n"] + 1e-8)

        return steps_of_numpy(update, SMALL)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.RMSprop, SMALL, alpha=0.9)


class AdaGrad(Line):
    group = OPTIMIZERS
    title = "AdaGrad: eps, gradients of 1e-6"
    in_mxnet = "1e-7, below the root"
    in_pytorch = "1e-10, outside of it; `initial_accumulator_value=1e-7, eps=0` is MXNet's"
    mxtrain = "said: `optimizer=adagrad` is MXNet's"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.AdaGrad(), SMALL)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["h"] = state.get("h", 0) + g * g
            return w - rate * g / np.sqrt(state["h"] + 1e-7)

        return steps_of_numpy(update, SMALL)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adagrad, SMALL)

    def converted(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adagrad, SMALL, initial_accumulator_value=1e-7, eps=0)


class AdaGradDecay(Line):
    group = OPTIMIZERS
    title = "AdaGrad: decay"
    in_mxnet = "decoupled: rate x decay x weight"
    in_pytorch = "added to the gradient"
    mxtrain = "said: `optimizer=adagrad` is MXNet's"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.AdaGrad(wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["h"] = state.get("h", 0) + g * g
            return w - rate * (g / np.sqrt(state["h"] + 1e-7) + 0.1 * w)

        return steps_of_numpy(update, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adagrad, GRADIENTS, weight_decay=0.1)

    def converted(self, torch: Any) -> Any:
        def decay(optimizer: Any, number: int) -> None:
            optimizer.param_groups[0]["params"][0].data *= 1 - CONSTANT[0] * 0.1

        options = {"initial_accumulator_value": 1e-7, "eps": 0}
        return steps_of_torch(torch, torch.optim.Adagrad, GRADIENTS, before=decay, **options)


class AdaDelta(Line):
    group = OPTIMIZERS
    title = "AdaDelta: rate and decay"
    in_mxnet = "no rate at all; each step takes decay x weight off"
    in_pytorch = "multiplied by the rate, 1 by default; decay is added to the gradient"
    mxtrain = "said: `optimizer.lr` has no effect"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.AdaDelta(wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["g"] = 0.9 * state.get("g", 0) + 0.1 * g * g
            change = np.sqrt(state.get("d", 0) + 1e-5) / np.sqrt(state["g"] + 1e-5) * g
            state["d"] = 0.9 * state.get("d", 0) + 0.1 * change**2
            return w - change - 0.1 * w

        return steps_of_numpy(update, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adadelta, GRADIENTS, weight_decay=0.1)

    def converted(self, torch: Any) -> Any:
        def decay(optimizer: Any, number: int) -> None:
            optimizer.param_groups[0]["params"][0].data *= 1 - 0.1

        return steps_of_torch(torch, torch.optim.Adadelta, GRADIENTS, (1.0,) * 4, decay, rho=0.9, eps=1e-5)


class Nadam(Line):
    group = OPTIMIZERS
    title = "Nadam: product of momenta"
    in_mxnet = "one for all parameters, so it falls with each of them: two parameters get other steps than one"
    in_pytorch = "one for each parameter"
    mxtrain = "corrected: as in PyTorch"

    def mxnet(self) -> Any:
        optimizer, found = mx.optimizer.Nadam(), []
        weights = [nd.array(WEIGHT) for _ in range(2)]
        states = [optimizer.create_state(index, weight) for index, weight in enumerate(weights)]
        optimizer.set_learning_rate(CONSTANT[0])
        for gradient in GRADIENTS:
            for index, weight in enumerate(weights):
                optimizer.update(index, weight, nd.array(gradient), states[index])
            found.append(weights[0].asnumpy())
        return found

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
            state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
            momenta = [0.9 * (1 - 0.5 * 0.96 ** (k * 0.004)) for k in range(1, number + 2)]
            # The second parameter has multiplied the product of each step before once more.
            product = np.prod(momenta[: number - 1]) ** 2 * momenta[number - 1]
            mean = momenta[number] * state["m"] / (1 - product * momenta[number])
            mean = mean + (1 - momenta[number - 1]) * g / (1 - product)
            return w - rate * mean / (np.sqrt(state["v"] / (1 - 0.999**number)) + 1e-8)

        return steps_of_numpy(update, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.NAdam, GRADIENTS)


class Adamax(Line):
    group = OPTIMIZERS
    title = "Adamax: a gradient of 0 in the first step"
    in_mxnet = "NaN: no eps"
    in_pytorch = "eps 1e-8"
    mxtrain = "corrected: eps 1e-8"
    gradients = [np.array([0, 1, -1, 2], np.float32)] * 2

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.Adamax(), self.gradients)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
            state["u"] = np.maximum(0.999 * state.get("u", 0), np.abs(g))
            with np.errstate(invalid="ignore"):
                return w - rate / (1 - 0.9**number) * state["m"] / state["u"]

        return steps_of_numpy(update, self.gradients)

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adamax, self.gradients)


class Lamb(Line):
    group = OPTIMIZERS
    title = "LAMB"
    in_mxnet = "gradients are not clipped"
    in_pytorch = "none; timm's `Lamb` clips their norm at 1, and adapts only parameters that decay"
    mxtrain = "said: `max_grad_norm=None` is MXNet's, for parameters with decay"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.LAMB(wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
            state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
            mean, square = state["m"] / (1 - 0.9**number), state["v"] / (1 - 0.999**number)
            change = mean / (np.sqrt(square) + 1e-6) + 0.1 * w
            return w - rate * np.linalg.norm(w) / np.linalg.norm(change) * change

        return steps_of_numpy(update, GRADIENTS)

    def _steps(self, torch: Any, **options: Any) -> Any:
        from timm.optim import Lamb as TimmLamb

        return steps_of_torch(torch, TimmLamb, GRADIENTS, weight_decay=0.1, **options)

    def pytorch(self, torch: Any) -> Any:
        return self._steps(torch)

    def converted(self, torch: Any) -> Any:
        return self._steps(torch, max_grad_norm=None)


NAMES = ("weight", "bias", "gamma", "beta")
"""Parameters that start at 1 and get gradients of 0: decay alone moves them."""


class ModuleDecay(Line):
    group = OPTIMIZERS
    title = "Decay of biases: Module"
    in_mxnet = "names that end with `_weight` or `_gamma`"
    in_pytorch = "everything"
    mxtrain = "said: weights alone (`model.no_decay_norm_and_bias`); `model.param_groups` gives gamma its decay"

    def mxnet(self) -> Any:
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
        y = mx.sym.BatchNorm(x, fix_gamma=False, name="bn")
        module = mx.mod.Module(y, label_names=[])
        module.bind([("data", (2, 4))])
        module.init_params()
        trained, running = module.get_params()
        module.set_params({name: nd.ones_like(array) for name, array in trained.items()}, running)
        module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 1.0, "wd": 0.1})
        module.forward(mx.io.DataBatch([nd.ones((2, 4))]), is_train=True)
        module.backward([nd.zeros((2, 3))])
        module.update()
        found = module.get_params()[0]
        return [found[name].asnumpy().ravel()[0] for name in ("fc_weight", "fc_bias", "bn_gamma", "bn_beta")]

    def numpy(self) -> Any:
        return [0.9, 1, 0.9, 1]

    def pytorch(self, torch: Any) -> Any:
        return decayed(torch, dict.fromkeys(NAMES, 0.1))

    def converted(self, torch: Any) -> Any:
        return decayed(torch, {"weight": 0.1, "bias": 0, "gamma": 0.1, "beta": 0})


def decayed(torch: Any, decays: Dict[str, float]) -> Any:
    """Returns the parameters after one step of PyTorch's SGD with these decays."""
    parameters = [torch.nn.Parameter(torch.ones(())) for _ in NAMES]
    for parameter in parameters:
        parameter.grad = torch.zeros(())
    groups = [{"params": [p], "weight_decay": decays[name]} for p, name in zip(parameters, NAMES)]
    torch.optim.SGD(groups, lr=1.0).step()
    return parameters


class TrainerDecay(Line):
    group = OPTIMIZERS
    title = "Decay of biases: Trainer"
    in_mxnet = in_pytorch = "everything"
    mxtrain = "same with `model.no_decay_norm_and_bias=false`; by default weights alone decay"

    def mxnet(self) -> Any:
        network = gluon.nn.HybridSequential()
        network.add(gluon.nn.Dense(3, in_units=4), gluon.nn.BatchNorm(in_channels=3))
        network.initialize(mx.init.One())
        trained = [network[0].weight, network[0].bias, network[1].gamma, network[1].beta]
        for parameter in trained:
            parameter.set_data(nd.ones(parameter.shape))
        trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 1.0, "wd": 0.1})
        with mx.autograd.record():
            y = network(nd.ones((2, 4))) * 0
        y.backward()
        trainer.step(2)
        return [parameter.data().asnumpy().ravel()[0] for parameter in trained]

    def numpy(self) -> Any:
        return [0.9] * 4

    def pytorch(self, torch: Any) -> Any:
        return decayed(torch, dict.fromkeys(NAMES, 0.1))


class StepSize(Line):
    group = OPTIMIZERS
    title = "Step: mean over the batch"
    in_mxnet = "`Trainer.step(n)` divides gradients by n: for losses of samples"
    in_pytorch = "`step()` does not: for the mean loss"
    mxtrain = "same as PyTorch: the mean over the global batch"
    x_BC = values(4, 3)

    def mxnet(self) -> Any:
        weight = gluon.Parameter("weight", shape=(3,))
        weight.initialize(mx.init.One())
        trainer = gluon.Trainer({"weight": weight}, "sgd", {"learning_rate": 1.0})
        with mx.autograd.record():
            loss = nd.dot(nd.array(self.x_BC), weight.data()).mean()
        loss.backward()
        trainer.step(4)
        return weight.data()

    def numpy(self) -> Any:
        return 1 - self.x_BC.astype(np.float64).mean(0) / 4

    def _step(self, torch: Any, rate: float) -> Any:
        weight = torch.nn.Parameter(torch.ones(3))
        (torch.tensor(self.x_BC) @ weight).mean().backward()
        torch.optim.SGD([weight], lr=rate).step()
        return weight

    def pytorch(self, torch: Any) -> Any:
        return self._step(torch, 1.0)

    def converted(self, torch: Any) -> Any:
        return self._step(torch, 1 / 4)


def clip_values(optimizer: Any, number: int) -> None:
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = parameter.grad.clamp(-0.5, 0.5)


class ClipGradient(Line):
    group = OPTIMIZERS
    title = "Clipped gradients"
    in_mxnet = "`clip_gradient`: each number; before decay is added"
    in_pytorch = "`clip_grad_norm_`: the norm; `clip_grad_value_` is MXNet's"
    mxtrain = "said: `optimizer.clip_gradient` is by number, `trainer.clip_global_norm` by norm"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.SGD(clip_gradient=0.5, wd=0.1), GRADIENTS)

    def numpy(self) -> Any:
        def update(state: Dict[str, Any], w: Any, g: Any, rate: float, number: int) -> Any:
            return w - rate * (np.clip(g, -0.5, 0.5) + 0.1 * w)

        return steps_of_numpy(update, GRADIENTS)

    def pytorch(self, torch: Any) -> Any:
        def clip(optimizer: Any, number: int) -> None:
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)

        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, before=clip, weight_decay=0.1)

    def converted(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.SGD, GRADIENTS, before=clip_values, weight_decay=0.1)


class ClipDecayedGradient(Line):
    group = OPTIMIZERS
    title = "Adam: clipped gradients and decay"
    in_mxnet = "decay is added, then the sum is clipped (RMSProp and FTML, too)"
    in_pytorch = "`clip_grad_value_` comes before decay"
    mxtrain = "said: `optimizer=adam` is MXNet's"

    def mxnet(self) -> Any:
        return steps_of_mxnet(mx.optimizer.Adam(clip_gradient=0.5, wd=0.5), GRADIENTS)

    def numpy(self) -> Any:
        return steps_of_numpy(
            lambda state, w, g, *rest: adam(state, w, np.clip(g + 0.5 * w, -0.5, 0.5), *rest), GRADIENTS
        )

    def pytorch(self, torch: Any) -> Any:
        return steps_of_torch(torch, torch.optim.Adam, GRADIENTS, before=clip_values, weight_decay=0.5)

    def converted(self, torch: Any) -> Any:
        def decay_and_clip(optimizer: Any, number: int) -> None:
            parameter = optimizer.param_groups[0]["params"][0]
            parameter.grad += 0.5 * parameter.detach()
            clip_values(optimizer, number)

        return steps_of_torch(torch, torch.optim.Adam, GRADIENTS, before=decay_and_clip)


class GlobalNorm(Line):
    group = OPTIMIZERS
    title = "Clipped global norm"
    in_mxnet = "`clip_global_norm`: limit / (norm + 1e-8)"
    in_pytorch = "`clip_grad_norm_`: limit / (norm + 1e-6)"
    mxtrain = "same: `trainer.clip_global_norm`"
    arrays = [values(3), values(2, 2, seed=1)]

    def mxnet(self) -> Any:
        arrays = [nd.array(array) for array in self.arrays]
        gluon.utils.clip_global_norm(arrays, 0.5)
        return arrays

    def numpy(self) -> Any:
        norm = math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in self.arrays))
        return [array * 0.5 / norm for array in self.arrays]

    def pytorch(self, torch: Any) -> Any:
        parameters = [torch.nn.Parameter(torch.zeros(array.shape)) for array in self.arrays]
        for parameter, array in zip(parameters, self.arrays):
            parameter.grad = torch.tensor(array)
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        return [parameter.grad for parameter in parameters]


def torch_rates(torch: Any, count: int, build: Callable[[Any], Any]) -> List[float]:
    """Returns the rates of the first steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, found = build(optimizer), []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


class StepSchedule(Line):
    group = OPTIMIZERS
    title = "Schedule: drops after 2 and 4 steps"
    in_mxnet = "`MultiFactorScheduler(step=[2, 4])`; steps count from 1"
    in_pytorch = "`MultiStepLR(milestones=[2, 4])`; steps count from 0"
    mxtrain = "same: `lr_scheduler=multistep`"

    def mxnet(self) -> Any:
        schedule = mx.lr_scheduler.MultiFactorScheduler(step=[2, 4], factor=0.1, base_lr=1.0)
        return [schedule(number) for number in range(1, 7)]

    def numpy(self) -> Any:
        return [1, 1, 0.1, 0.1, 0.01, 0.01]

    def pytorch(self, torch: Any) -> Any:
        return torch_rates(torch, 6, lambda one: torch.optim.lr_scheduler.MultiStepLR(one, [2, 4], 0.1))


class CosineSchedule(Line):
    group = OPTIMIZERS
    title = "Schedule: cosine over 5 steps"
    in_mxnet = "`CosineScheduler`: the first step has the second rate, the last one 0"
    in_pytorch = "`CosineAnnealingLR`: the first step has the full rate"
    mxtrain = "same as PyTorch: `lr_scheduler=cosine`"

    def mxnet(self) -> Any:
        schedule = mx.lr_scheduler.CosineScheduler(5, base_lr=1.0)
        return [schedule(number) for number in range(1, 6)]

    def numpy(self) -> Any:
        return [(1 + math.cos(math.pi * number / 5)) / 2 for number in range(1, 6)]

    def _rates(self, torch: Any, count: int) -> List[float]:
        return torch_rates(torch, count, lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 5))

    def pytorch(self, torch: Any) -> Any:
        return self._rates(torch, 5)

    def converted(self, torch: Any) -> Any:
        return self._rates(torch, 6)[1:]
