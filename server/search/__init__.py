"""Ways to choose tokens: one small object a request."""

from server.search.base import Search
from server.search.greedy import GreedySearch

__all__ = ["GreedySearch", "Search"]
