"""Makes runs from existing models, for `dragoman-train --init-from`: from bundles, which undoes an export, and from
published models."""
