"""Every loss of ``torch.nn.functional``: values, gradients, reductions and options as on CPU."""

import pytest
import torch
import torch.nn.functional as F

from tests.support import executors
from tests.support.compare import check, check_raises

REDUCTIONS = ("none", "mean", "sum")
N, C = 6, 5


def randn(*shape, dtype=torch.float32, grad=False, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def rand(*shape, grad=False):
    return randn(*shape).sigmoid().detach().requires_grad_(grad)


def classes(*shape, high=C):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(len(shape)))


def signs(*shape):
    return randn(*shape, seed=7).sign()


X, Y = randn(N, C, grad=True), randn(N, C, seed=1)
SCORES = randn(N, C, grad=True)
IMAGE = randn(2, C, 3, 4, grad=True)
IMAGE_TARGET = classes(2, 3, 4).index_fill(2, torch.tensor([1]), 3)
WEIGHT = rand(C)

CASES = {
    "mse": (F.mse_loss, (X, Y), {}),
    "mse_target_grad": (F.mse_loss, (X, randn(N, C, seed=1, grad=True)), {}),
    "mse_broadcast": (F.mse_loss, (X, Y[0]), {}),
    "mse_weight": (F.mse_loss, (X, Y), {"weight": rand(N, C)}),
    "l1": (F.l1_loss, (X, Y), {}),
    "smooth_l1": (F.smooth_l1_loss, (X, Y), {"beta": 0.7}),
    "smooth_l1_beta_0": (F.smooth_l1_loss, (X, Y), {"beta": 0.0}),
    "huber": (F.huber_loss, (X, Y), {"delta": 0.7}),
    "kl_div": (F.kl_div, (X, rand(N, C)), {}),
    "kl_div_log": (F.kl_div, (X, Y), {"log_target": True}),
    "bce": (F.binary_cross_entropy, (rand(N, C, grad=True), rand(N, C)), {}),
    "bce_weight": (F.binary_cross_entropy, (rand(N, C, grad=True), rand(N, C), WEIGHT), {}),
    "bce_logits": (F.binary_cross_entropy_with_logits, (X, rand(N, C)), {}),
    "bce_logits_weights": (
        F.binary_cross_entropy_with_logits,
        (X, rand(N, C)),
        {"weight": WEIGHT, "pos_weight": 2 * WEIGHT},
    ),
    "soft_margin": (F.soft_margin_loss, (X, signs(N, C)), {}),
    "hinge_embedding": (F.hinge_embedding_loss, (X, signs(N, C)), {"margin": 0.5}),
    "poisson_nll": (F.poisson_nll_loss, (X, rand(N, C)), {}),
    "poisson_nll_full": (
        F.poisson_nll_loss,
        (rand(N, C, grad=True), 4 * rand(N, C)),
        {"log_input": False, "full": True},
    ),
    "gaussian_nll": (F.gaussian_nll_loss, (X, Y, rand(N, C, grad=True)), {"full": True}),
    "margin_ranking": (F.margin_ranking_loss, (X, Y, signs(N, C)), {"margin": 0.2}),
    "cosine_embedding": (F.cosine_embedding_loss, (X, Y, signs(N)), {"margin": 0.1}),
    "triplet": (F.triplet_margin_loss, (X, Y, randn(N, C, seed=2)), {"swap": True, "p": 1.5}),
    "triplet_distance": (
        F.triplet_margin_with_distance_loss,
        (X, Y, randn(N, C, seed=2)),
        {"distance_function": lambda a, b: (a - b).abs().sum(-1)},
    ),
    "multi_margin": (F.multi_margin_loss, (X, classes(N)), {"margin": 0.8}),
    "multi_margin_p2": (F.multi_margin_loss, (X, classes(N)), {"p": 2, "weight": WEIGHT}),
    "multi_margin_1d": (F.multi_margin_loss, (randn(C, grad=True), classes(1)[0]), {}),
    "multilabel_margin": (
        F.multilabel_margin_loss,
        (X, torch.tensor([[3, 0, -1, 2, 2], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]] * 2)),
        {},
    ),
    "multilabel_margin_1d": (
        F.multilabel_margin_loss,
        (randn(C, grad=True), torch.tensor([1, 4, -1, 0, 0])),
        {},
    ),
    "multilabel_soft_margin": (
        F.multilabel_soft_margin_loss,
        (X, (Y > 0).float()),
        {"weight": WEIGHT},
    ),
    "nll": (F.nll_loss, (X, classes(N)), {"weight": WEIGHT, "ignore_index": 2}),
    "nll_1d": (F.nll_loss, (randn(C, grad=True), torch.tensor(3)), {}),
    "nll_uint8": (F.nll_loss, (X, classes(N).to(torch.uint8)), {}),
    "nll_2d": (F.nll_loss, (IMAGE, IMAGE_TARGET), {"weight": WEIGHT, "ignore_index": 3}),
    "nll_5d": (F.nll_loss, (randn(2, C, 3, 2, 2, grad=True), classes(2, 3, 2, 2)), {}),
    "nll_all_ignored": (F.nll_loss, (X, torch.full((N,), -100)), {}),
    "cross_entropy": (F.cross_entropy, (SCORES, classes(N)), {}),
    "cross_entropy_options": (
        F.cross_entropy,
        (SCORES, classes(N)),
        {"weight": WEIGHT, "ignore_index": 1, "label_smoothing": 0.1},
    ),
    "cross_entropy_2d": (
        F.cross_entropy,
        (IMAGE, IMAGE_TARGET),
        {"ignore_index": 3, "label_smoothing": 0.2},
    ),
    "cross_entropy_probabilities": (
        F.cross_entropy,
        (SCORES, rand(N, C).softmax(1)),
        {"weight": WEIGHT, "label_smoothing": 0.1},
    ),
}


@pytest.mark.parametrize(
    "name, reduction, executor",
    [executors.param("eager", name, reduction) for name in CASES for reduction in REDUCTIONS]
    + [
        executors.param(executor, name, "mean") for name in CASES for executor in executors.COMPILED
    ],
)
def test_loss(name, reduction, executor):
    function, args, options = CASES[name]
    with executors.outcome(executor, name):
        check(function, *args, **options, reduction=reduction, executor=executor)


def test_every_loss_is_here():
    tested = {function.__name__ for function, _, _ in CASES.values()} | {"ctc_loss"}
    assert {name for name in dir(F) if name.endswith("_loss")} <= tested


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "function", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
)
def test_dtypes(function, dtype):
    check(function, X.detach().to(dtype).requires_grad_(), rand(N, C).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_cross_entropy_dtypes(dtype):
    check(F.cross_entropy, SCORES.detach().to(dtype).requires_grad_(), classes(N))


@pytest.mark.parametrize("function", [F.mse_loss, F.l1_loss, F.huber_loss, F.soft_margin_loss])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_small_shapes(function, shape):
    for reduction in REDUCTIONS:
        check(function, randn(*shape, grad=True), randn(*shape, seed=3), reduction=reduction)


def test_no_samples():
    for reduction in REDUCTIONS:
        check(F.nll_loss, randn(0, C, grad=True), classes(0), reduction=reduction)


def test_infinite_scores_of_ignored_samples_do_not_count():
    scores = SCORES.detach().clone()
    scores[0] = -torch.inf
    target = classes(N).index_fill(0, torch.tensor([0]), -100)
    check(F.nll_loss, scores.requires_grad_(), target)


def test_transposed_scores_keep_their_strides():
    check(F.cross_entropy, randn(2, 7, C, grad=True), classes(2, C))
    check(lambda x, y: F.cross_entropy(x.mT, y), randn(2, 7, C, grad=True), classes(2, 7))


@pytest.mark.slow
def test_cosine_similarity():
    check(F.cosine_similarity, X, Y)
    check(F.cosine_similarity, X, torch.zeros(C), dim=-1)


def test_second_derivative():
    def curvature(x, y):
        (slope,) = torch.autograd.grad(F.mse_loss(x, y), x, create_graph=True)
        return slope.square().sum()

    check(curvature, X, Y)


def test_errors():
    check_raises(F.nll_loss, X, torch.tensor([0, 1, 2, 3, 4, 5]))
    check_raises(F.nll_loss, X, torch.tensor([0, 1, 2, 3, 4, -1]))
    check_raises(F.cross_entropy, IMAGE, IMAGE_TARGET + 3)
    check_raises(F.nll_loss, X, classes(N + 1))
    check_raises(F.nll_loss, X, Y)
    check_raises(F.binary_cross_entropy, X, Y)
    check_raises(F.multi_margin_loss, X, classes(N) + 3)
    check_raises(F.multilabel_margin_loss, X, classes(N, C) + 3)
    check_raises(F.mse_loss, X, randn(N, C + 1))


LOG_PROBS = randn(12, 3, C).log_softmax(-1)
CTC = {
    "padded": (torch.tensor([[1, 2, 2, 3], [4, 4, 1, 0], [2, 1, 3, 4]]), [12, 9, 10], [4, 3, 4]),
    "concatenated": (torch.tensor([1, 2, 2, 3, 4, 1, 1]), [12, 12, 6], [4, 1, 2]),
    "empty_target": (torch.tensor([[1, 2], [3, 3], [1, 1]]), [12, 12, 3], [2, 0, 1]),
    "no_labels": (torch.zeros(3, 0, dtype=torch.long), [12, 5, 1], [0, 0, 0]),
    "impossible": (torch.tensor([[1, 1, 1], [3, 2, 1], [1, 2, 3]]), [12, 2, 4], [3, 3, 3]),
}


@pytest.mark.slow
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CTC)
def test_ctc_loss(name, reduction, zero_infinity):
    targets, inputs, labels = CTC[name]

    def loss(scores, targets):
        return F.ctc_loss(
            scores.log_softmax(-1),
            targets,
            torch.tensor(inputs),
            torch.tensor(labels),
            reduction=reduction,
            zero_infinity=zero_infinity,
        )

    # an impossible target without zero_infinity has no gradient: NaN, in other places than CPU's
    grad = zero_infinity or name != "impossible"
    check(loss, randn(12, 3, C, grad=grad), targets)


@pytest.mark.slow
def test_ctc_gradient_is_that_of_the_log_softmax():
    def loss(log_probs, targets):
        return F.ctc_loss(log_probs, targets, (12, 9, 10), (4, 3, 4), blank=0)

    targets = CTC["padded"][0]
    check(loss, LOG_PROBS.clone().requires_grad_(), targets)
    check(loss, LOG_PROBS.double().requires_grad_(), targets)


@pytest.mark.slow
def test_ctc_lengths_on_the_device_and_another_blank():
    def loss(scores, targets, inputs, labels):
        return F.ctc_loss(scores.log_softmax(-1), targets, inputs, labels, blank=C - 1)

    targets = torch.tensor([[1, 2], [3, 3], [1, 0]])
    lengths = torch.tensor([12, 9, 10]), torch.tensor([2, 2, 1])
    check(loss, randn(12, 3, C, grad=True), targets, *lengths)


def test_ctc_compiles_once_for_all_lengths():
    from torch_jax.ops import ctc

    scores = randn(12, 3, C).to("jax").log_softmax(-1)
    targets = CTC["padded"][0].to("jax")
    before = ctc._forward._cache_size()
    for inputs in ((12, 9, 10), (11, 10, 12), (12, 12, 12)):
        F.ctc_loss(scores, targets, inputs, (4, 3, 2))
    assert ctc._forward._cache_size() <= before + 1
