"""Types that every package shares: requests, results, errors, and the contract between an engine and a search."""
