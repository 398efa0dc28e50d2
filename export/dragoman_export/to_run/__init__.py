"""Makes runs of models that exist, for `dragoman-train --init-from`: of bundles, the way back of an export, and of
published models."""
