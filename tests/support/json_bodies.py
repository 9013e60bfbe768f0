"""Bodies as programs send them in JSON: the same fields, other values; identifiers and amounts are as random as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import orjson


def json_bodies(count: int) -> Iterator[bytes]:
    """Orders; always the same ones."""
    rng = random.Random(7)
    words = [rng.randbytes(rng.randint(2, 6)).hex() for _ in range(2000)]
    for number in range(count):
        yield orjson.dumps(
            {
                "orderId": rng.getrandbits(64),
                "createdAt": 1_700_000_000_000 + number * 37 + rng.randrange(30),
                "customer": {
                    "id": rng.randrange(10**7),
                    "name": " ".join(rng.choices(words, k=2)),
                    "tier": rng.choice("ABC"),
                },
                "items": [
                    {"sku": rng.choice(words), "quantity": rng.randint(1, 9), "priceCents": rng.randint(100, 99_999)}
                    for _ in range(rng.randint(1, 5))
                ],
                "shippingAddress": {"street": rng.choice(words), "city": rng.choice(words[:300]), "country": "DE"},
                "status": rng.choice(["CREATED", "PAID", "SHIPPED"]),
            }
        )
