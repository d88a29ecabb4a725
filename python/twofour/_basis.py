"""The mathematics of calibration: from second moments of q and k to a basis for pruning q.

Dropping channel d of q' costs q'_d² · Var(k'_d) of expected squared error in the logits, since a
constant per row does not change a softmax. A good basis makes the k' white, the q' uncorrelated,
and lets every group of four channels hold two that matter and two that do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: C is regularised with this fraction of its mean diagonal.
REGULARISATION = 1e-6


def group_channels(energy: Tensor) -> Tensor:
    """Order of channels in which each aligned group of four holds two high and two low energies.

    The channel of rank r (by falling energy; ties by channel) goes to group r mod (D/4), so a
    group holds ranks g, g + D/4, g + D/2, g + 3D/4: two of the upper half, two of the lower.

    Args:
        energy: [D], D a multiple of 4.

    Returns:
        int64 [D]: old channel at each new position.
    """
    dim = energy.numel()
    groups = dim // 4
    ranked = torch.argsort(energy, descending=True, stable=True)
    order = torch.empty_like(ranked)
    rank = torch.arange(dim)
    order[4 * (rank % groups) + rank // groups] = ranked
    return order


def balanced(cov_k: Tensor, second_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T = L V from C = L Lᵀ and Lᵀ G L = V diag(e) Vᵀ: k' white, q' uncorrelated with energies e.

    Args:
        cov_k: fp64 [D,D], covariance of the keys, C.
        second_q: fp64 [D,D], uncentred second moment of the queries that use them, G.

    Returns:
        T, its transposed inverse, weights: fp64 [D,D], [D,D], [D].
    """
    dim = cov_k.size(0)
    # A head whose keys are all equal has C = 0; any positive floor keeps the factorisation defined.
    ridge = REGULARISATION * cov_k.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    lower = torch.linalg.cholesky(cov_k + ridge * torch.eye(dim, dtype=cov_k.dtype))
    inner = lower.mT @ second_q @ lower
    energy, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    vectors = vectors[:, group_channels(energy)]
    inverse = torch.linalg.solve_triangular(lower.mT, vectors, upper=True)
    return lower @ vectors, inverse, torch.ones(dim, dtype=cov_k.dtype)


def permutation(cov_k: Tensor, second_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Channels reordered by Var(k_d)·E[q_d²], compared with weights std(k_d); no arithmetic on q.

    Arguments and results as for `balanced`.
    """
    variance = cov_k.diagonal()
    order = group_channels(variance * second_q.diagonal())
    matrix = torch.eye(cov_k.size(0), dtype=cov_k.dtype)[:, order]
    floor = variance.mean().clamp(min=torch.finfo(torch.float32).tiny) * REGULARISATION
    weights = variance.clamp(min=floor).sqrt()[order]
    return matrix, matrix.clone(), weights


def identity(cov_k: Tensor, second_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Natural channel order, magnitudes compared as they are."""
    matrix = torch.eye(cov_k.size(0), dtype=cov_k.dtype)
    return matrix, matrix.clone(), torch.ones(cov_k.size(0), dtype=cov_k.dtype)


class Moments:
    """Running second moments of one layer, in fp64 on the CPU."""

    def __init__(self, heads_q: int, heads_kv: int, head_dim: int):
        self.count = 0
        self._sum_k = torch.zeros(heads_kv, head_dim, dtype=torch.float64)
        self._kk = torch.zeros(heads_kv, head_dim, head_dim, dtype=torch.float64)
        self._qq = torch.zeros(heads_q, head_dim, head_dim, dtype=torch.float64)

    def add(self, q: Tensor, k: Tensor) -> None:
        """Takes the same tokens' q [B,Hq,M,D] and k [B,Hkv,M,D], after rotary embedding."""
        for batch in range(q.size(0)):
            qd, kd = q[batch].double(), k[batch].double()
            self._qq += (qd.mT @ qd).cpu()
            self._kk += (kd.mT @ kd).cpu()
            self._sum_k += kd.sum(1).cpu()
            self.count += qd.size(1)

    def cov_k(self) -> Tensor:
        """Centred covariance per KV head, fp64 [Hkv,D,D]."""
        mean = self._sum_k / self.count
        return self._kk / self.count - mean[:, :, None] * mean[:, None, :]

    def second_q(self) -> Tensor:
        """E[q qᵀ] per KV head, the equal-weight mean over the query heads that use it."""
        heads_kv = self._kk.size(0)
        per_head = self._qq / self.count
        return per_head.unflatten(0, (heads_kv, -1)).mean(1)
