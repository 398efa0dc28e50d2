"""Models that were converted for CTranslate2, as Transformers of ours."""
