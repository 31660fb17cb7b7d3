"""Rotary positions and grouped queries against their definitions."""

import torch
import torch.nn.functional as F

from shardwright.zoo.llama import GroupedQueryAttention, rotary_tables, rotate


# Pairs (i, i + d/2) are complex numbers turned by position x theta^(-2i/d).
def test_rotation_is_multiplication_by_a_complex_phase():
    cos, sin = rotary_tables(seq_len=10, head_dim=8, theta=100.0)
    x = torch.randn(2, 3, 10, 8, dtype=torch.float64)
    turned = rotate(x, cos.double(), sin.double())
    angles = torch.arange(10)[:, None] * 100.0 ** (-torch.arange(4) / 4.0)[None, :]
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * angles.double())
    torch.testing.assert_close(
        torch.complex(turned[..., :4], turned[..., 4:]), expected, rtol=1e-5, atol=1e-5
    )


# torch's own grouped-query attention is the oracle.
def test_grouped_queries_equal_torch_with_enable_gqa():
    torch.manual_seed(0)
    layer = GroupedQueryAttention(hidden=32, heads=8, kv_heads=2).double()
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    cos = torch.ones(6, 4, dtype=torch.float64)
    sin = torch.zeros(6, 4, dtype=torch.float64)
    q = layer.q(x).view(2, 6, 8, 4).transpose(1, 2)
    k = layer.k(x).view(2, 6, 2, 4).transpose(1, 2)
    v = layer.v(x).view(2, 6, 2, 4).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = layer.out(y.transpose(1, 2).reshape(2, 6, 32))
    torch.testing.assert_close(layer(x, cos, sin), expected, rtol=1e-10, atol=1e-12)
